"""`BatchPredictor`: a checkpoint, and a run whose ranks score a dataset with it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain import environ, pickle_trust
from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import check_count, given_or_default
from hpctrain.config import CheckpointConfig, RunConfig, ScalingConfig
from hpctrain.data.dataset import Dataset
from hpctrain.data.identity import identify_files
from hpctrain.data.schema import Schema, check_columns
from hpctrain.errors import ConfigError
from hpctrain.log import log
from hpctrain.plan.spec import make_fingerprint, pack
from hpctrain.predict.batches import PREDICTIONS
from hpctrain.predict.features import ModelFeatures, columns_of_features
from hpctrain.predict.identity import Identity
from hpctrain.predict.input import as_dataset, schema_after
from hpctrain.predict.output import Output
from hpctrain.predict.predict_arguments import check_arguments
from hpctrain.predict.predictor import FunctionPredictor, Predictor
from hpctrain.predict.scoring import Scoring, score
from hpctrain.predict.scoring_workers import take_scaling
from hpctrain.preprocessors import storage
from hpctrain.rundir.paths import RunPaths
from hpctrain.trainer import DataParallelTrainer

if TYPE_CHECKING:
    import pandas

    from hpctrain.launch.handle import RunHandle
    from hpctrain.result import Result


class BatchPrediction(DataParallelTrainer):
    """The run of a `BatchPredictor`: every rank scores, and nothing is trained.

    Parameters
    ----------
    scoring
        What is scored.
    scaling_config, run_config
        As in `hpctrain.BaseTrainer`.

    Raises
    ------
    ConfigError
        If the run is to stop before all rows are scored.
    """

    def __init__(
        self,
        scoring: Scoring,
        *,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        run_config = given_or_default("run_config", run_config, RunConfig)
        if run_config.stop is not None:
            raise ConfigError(
                "RunConfig(stop=...) would end a prediction before all rows are scored. Leave it "
                "out; predict on dataset.limit(n) to score fewer."
            )
        if run_config.checkpoint_config == CheckpointConfig():
            # They say how far the run is, and nobody wants the old ones.
            run_config = replace(run_config, checkpoint_config=CheckpointConfig(num_to_keep=1))
        super().__init__(
            score,
            train_loop_config={"scoring": scoring},
            scaling_config=scaling_config,
            run_config=run_config,
        )


class BatchPredictor:
    """Scores datasets with the model of a checkpoint, on as many ranks as wanted.

    Parameters
    ----------
    checkpoint
        The model. Every rank loads it once, from the shared filesystem.
    predictor_cls
        Class that loads and calls it.
    **predictor_kwargs
        For ``predictor_cls.from_checkpoint()``.

    Raises
    ------
    ConfigError
        If the checkpoint is that of another framework.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None,
        predictor_cls: type[Predictor],
        **predictor_kwargs: Any,
    ) -> None:
        given: object = predictor_cls
        if not (isinstance(given, type) and issubclass(given, Predictor)):
            raise ConfigError(
                f"predictor_cls={predictor_cls!r}: a class that extends hpctrain.predict.Predictor "
                f"is needed, such as hpctrain.xgboost.XGBoostPredictor."
            )
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            raise ConfigError(
                f"checkpoint={checkpoint!r} is a {type(checkpoint).__name__}. Give a "
                f"hpctrain.Checkpoint, such as Result.checkpoint."
            )
        self._checkpoint = checkpoint
        self._predictor_cls = predictor_cls
        self._predictor_kwargs = predictor_kwargs
        self._preprocessor: Any = None
        self._model: ModelFeatures | None = None
        if checkpoint is not None:
            self._model = predictor_cls.check_checkpoint(checkpoint)

    def __repr__(self) -> str:
        """Return class and checkpoint."""
        return f"BatchPredictor({self._checkpoint!r}, {self._predictor_cls.__name__})"

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, predictor_cls: type[Predictor], **kwargs: Any
    ) -> BatchPredictor:
        """Return a batch predictor with the model of a checkpoint. Not collective.

        Raises
        ------
        ConfigError
            If the checkpoint is that of another framework.
        """
        return cls(checkpoint, predictor_cls, **kwargs)

    @classmethod
    def from_pandas_udf(
        cls, pandas_udf: Callable[[pandas.DataFrame], pandas.DataFrame]
    ) -> BatchPredictor:
        """Return a batch predictor that calls a function of a DataFrame. Not collective."""
        return cls(None, FunctionPredictor, function=pandas_udf)

    def get_preprocessor(self) -> Any:
        """Return what batches go through before the model, or None. Not collective."""
        if self._preprocessor is not None or self._checkpoint is None:
            return self._preprocessor
        trusted = bool(self._predictor_kwargs.get("trust_preprocessor"))
        return self._checkpoint.get_preprocessor(trusted=trusted)

    def set_preprocessor(self, preprocessor: Any) -> None:
        """Use another preprocessor than the checkpoint's. Not collective."""
        self._preprocessor = preprocessor

    def predict(
        self,
        data: Any,
        *,
        feature_columns: Sequence[str] | None = None,
        keep_columns: Sequence[str] | None = None,
        batch_size: int = 4096,
        output: str | PathLike[str] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        rows_per_part: int | None = None,
        **predict_kwargs: Any,
    ) -> Dataset:
        """Score a dataset, and return the predictions as another.

        Not collective, except where this process already is a rank. It is a run as that of a
        trainer, in every home, with its directory, restarts and display. Rows are scored and
        written in parts; the same call after a failure goes on with the parts that are missing, and
        once more it returns what is there.

        Parameters
        ----------
        data
            A `hpctrain.data.Dataset`, a path or paths, or arrays and frames in memory.
        feature_columns
            Columns that the predictor is given, after the preprocessor. None: those that the
            checkpoint names; if it names none, all but `keep_columns`.
        keep_columns
            Columns to copy beside the predictions, after the preprocessor.
        batch_size
            Rows that the predictor is given at a time.
        output
            Where the predictions go; its ending says the format: ``.h5`` (virtual datasets over a
            file for each part), ``.parquet`` (a directory), ``.csv`` or ``.npy`` (one file). Rows
            are in the order of the input. None: ``artifacts/predictions.h5`` in the run directory.
        scaling_config, run_config
            As for a trainer.
        rows_per_part
            Rows that are scored again, at most, by each rank after a failure, in whole batches.
            None: as suits the number of ranks.
        **predict_kwargs
            For the predictor's ``predict()``. Ray Train's ``max_scoring_workers``,
            ``min_scoring_workers``, ``num_cpus_per_worker`` and ``num_gpus_per_worker`` are taken
            in place of a `scaling_config`; workers with GPUs load the predictor with
            ``use_gpu=True``.

        Raises
        ------
        ConfigError
            If something is impossible, such as a feature that is missing, an output that exists or
            an argument that the predictor does not have; nothing has been started then.
        LaunchError
            If the ranks, or the job, could not be started.
        TrainingFailedError
            If the run failed or was stopped.
        """
        scaling_config, predictor_kwargs = take_scaling(
            predict_kwargs, scaling_config, self._predictor_cls, self._predictor_kwargs
        )
        scoring = self._plan(
            as_dataset(data),
            feature_columns=feature_columns,
            keep_columns=keep_columns or (),
            batch_size=batch_size,
            output=None if output is None else Output.at(output),
            rows_per_part=rows_per_part,
            predictor_kwargs=predictor_kwargs,
            predict_kwargs=predict_kwargs,
        )
        run = _make_run(scoring, scaling_config, run_config)
        if run is None:
            assert scoring.output is not None
            if run_config is None or run_config.verbose:
                log(f"{scoring.output.path} is there already, and is returned.", to=sys.stdout)
            return scoring.output.read()
        result = run.fit()
        # Where this process is a rank, one of them speaks for all.
        is_speaker = environ.variable(environ.RANK_MARKER) in (None, "0")
        if run.run_config.verbose and is_speaker and "output" in result.metrics:
            log(f"{describe_result(result)}")
        return scoring.output_in(result.path).read()

    def submit(
        self,
        data: Any,
        *,
        feature_columns: Sequence[str] | None = None,
        keep_columns: Sequence[str] | None = None,
        batch_size: int = 4096,
        output: str | PathLike[str] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        rows_per_part: int | None = None,
        **predict_kwargs: Any,
    ) -> RunHandle:
        """Begin to score a dataset and return at once; the run goes on without this process.

        Not collective. As ``submit()`` of a trainer. When the run is over,
        ``result().metrics["output"]`` is the path of the predictions, and `predict` with the same
        arguments returns them.

        Parameters
        ----------
        data, feature_columns, keep_columns, batch_size, output, scaling_config, run_config
            As for `predict`.
        rows_per_part, **predict_kwargs
            As for `predict`.

        Raises
        ------
        ConfigError
            If something is impossible, or the output is there already; nothing is started then.
        LaunchError
            If Slurm refused the job.
        """
        scaling_config, predictor_kwargs = take_scaling(
            predict_kwargs, scaling_config, self._predictor_cls, self._predictor_kwargs
        )
        scoring = self._plan(
            as_dataset(data),
            feature_columns=feature_columns,
            keep_columns=keep_columns or (),
            batch_size=batch_size,
            output=None if output is None else Output.at(output),
            rows_per_part=rows_per_part,
            predictor_kwargs=predictor_kwargs,
            predict_kwargs=predict_kwargs,
        )
        run = _make_run(scoring, scaling_config, run_config)
        if run is None:
            assert scoring.output is not None
            raise ConfigError(
                f"{scoring.output.path} is there already and has these predictions, so there is "
                f"no run to submit. Call predict(), which returns it, or choose another output."
            )
        return run.submit()

    def _plan(
        self,
        dataset: Dataset,
        *,
        feature_columns: Sequence[str] | None,
        keep_columns: Sequence[str],
        batch_size: int,
        output: Output | None,
        rows_per_part: int | None,
        predictor_kwargs: Mapping[str, Any],
        predict_kwargs: dict[str, Any],
    ) -> Scoring:
        check_arguments(self._predictor_cls, predict_kwargs, own=_OWN_ARGUMENTS)
        check_count("batch_size", batch_size, at_least=1)
        check_count("rows_per_part", rows_per_part, at_least=1, optional=True)
        for name, columns in (("feature_columns", feature_columns), ("keep_columns", keep_columns)):
            if isinstance(columns, str):
                raise ConfigError(f"{name}={columns!r}: a list of names is needed, [{columns!r}].")
        if dataset.source.num_rows == 0:
            raise ConfigError("the input has no rows: there is nothing to predict on.")
        preprocessor = self.get_preprocessor()
        columns = self._choose_columns(
            schema_after(preprocessor, dataset), feature_columns, tuple(keep_columns)
        )
        if preprocessor is None:
            dataset = dataset.select_columns(list(dict.fromkeys((*columns, *keep_columns))))
        if rows_per_part is not None:
            rows_per_part = -(-rows_per_part // batch_size) * batch_size
        checkpoint = None if self._checkpoint is None else Path(self._checkpoint.path)
        scoring = Scoring(
            dataset=dataset,
            predictor_cls=self._predictor_cls,
            checkpoint=checkpoint,
            predictor_kwargs=predictor_kwargs,
            predict_kwargs=predict_kwargs,
            preprocessor=self._preprocessor,
            own_pickles=frozenset() if checkpoint is None else _own_pickles(checkpoint),
            feature_columns=columns,
            keep_columns=tuple(keep_columns),
            batch_size=batch_size,
            rows_per_part=rows_per_part,
            output=output,
            identity=Identity(whole="", inputs="", model="", about=""),
        )
        about = f"{self._predictor_cls.__name__} of {checkpoint}, {dataset!r}"
        return replace(scoring, identity=_identify(scoring, about))

    def _choose_columns(
        self,
        schema: Schema,
        feature_columns: Sequence[str] | None,
        keep_columns: tuple[str, ...],
    ) -> tuple[str, ...]:
        check_columns(keep_columns, schema.names)
        if PREDICTIONS in keep_columns:
            raise ConfigError(
                f"keep_columns has {PREDICTIONS!r}, the name of what is predicted. Rename the "
                f"column of the input, or do not keep it."
            )
        names = None if self._model is None else self._model.features
        label = None if self._model is None else self._model.label
        if feature_columns is not None:
            check_columns(feature_columns, schema.names)
            chosen = list(feature_columns)
        else:
            not_features = {*keep_columns, label} if names is None else set()
            chosen = [name for name in schema.names if name not in not_features]
        if names is not None:
            shapes = {name: schema[name].shape for name in chosen}
            ignore = () if feature_columns is not None else (*keep_columns, *_only(label))
            chosen = columns_of_features(shapes, names, ignore=ignore)
        return tuple(chosen)


_OWN_ARGUMENTS = tuple(inspect.signature(BatchPredictor.predict).parameters)[1:-1]


def _make_run(
    scoring: Scoring, scaling_config: ScalingConfig | None, run_config: RunConfig | None
) -> BatchPrediction | None:
    """Return the run that scores, or None if it is not begun yet and its output is there."""
    run = BatchPrediction(scoring, scaling_config=scaling_config, run_config=run_config)
    if (begun := _find_run(run.run_config)) is not None:
        scoring.output_in(begun.root).refuse_parts_of_another(scoring.identity)
    elif scoring.output is not None:
        scoring.output.check(keep_columns=scoring.keep_columns)
        if scoring.output.is_finished(scoring.identity):
            return None
    return run


def describe_result(result: Result) -> str:
    """Return in a line what a finished prediction did. Not collective."""
    metrics = result.metrics
    before = metrics["rows_before"]
    resumed = f", {before} of them before" if before else ""
    failed = sum(attempt.cause not in (None, "finished") for attempt in result.attempts)
    failures = f", after {failed} failed attempts" if failed else ""
    ranks = len(metrics["rows_of_ranks"])
    return (
        f"{metrics['of']} rows{resumed}, {metrics['seconds']:.1f} s on {ranks} ranks "
        f"({metrics['rows_per_s']} rows/s){failures}: {metrics['output']}"
    )


def _own_pickles(checkpoint: Path) -> frozenset[str]:
    """Return the digests of the pickles in a checkpoint that this process has made."""
    return storage.recognized_in(checkpoint) | pickle_trust.made_here_in(checkpoint)


def _only(label: str | None) -> tuple[str, ...]:
    return () if label is None else (label,)


def _identify(scoring: Scoring, about: str) -> Identity:
    """Return all that predictions depend on, the content of input and model included."""
    inputs, model = map(identify_files, (scoring.input_files(), scoring.model_files()))
    # How the rows are dealt into parts changes no prediction, nor does the place of the output. The
    # files of the checkpoint count by themselves, whoever made them.
    content = replace(scoring, output=None, rows_per_part=None, own_pickles=frozenset())
    whole = make_fingerprint(pack(content, what="the prediction"), f"{inputs} {model}".encode())
    return Identity(whole=whole, inputs=inputs, model=model, about=about)


def _find_run(run_config: RunConfig) -> RunPaths | None:
    """Return the run's directory if it has begun: then it knows what its output is."""
    if run_config.name is None:
        return None
    paths = RunPaths(Path(run_config.storage_path).absolute() / run_config.name)
    return paths if paths.status.exists() else None
