"""`BatchPredictor`: a run whose ranks score a dataset with the model of a checkpoint."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain import environ
from hpctrain.backend import BackendConfig
from hpctrain.checkpoint import Checkpoint
from hpctrain.config import CheckpointConfig, RunConfig, ScalingConfig
from hpctrain.data.dataset import Dataset
from hpctrain.errors import ConfigError
from hpctrain.function_run import FunctionRun
from hpctrain.log import log
from hpctrain.plan.spec import WorkerSpec
from hpctrain.predict.features import ModelFeatures
from hpctrain.predict.input import as_dataset
from hpctrain.predict.output import Output
from hpctrain.predict.predict_arguments import check_arguments
from hpctrain.predict.predictor import FunctionPredictor, Predictor
from hpctrain.predict.scoring import Scoring, score
from hpctrain.predict.scoring_plan import plan_scoring
from hpctrain.predict.scoring_workers import take_scaling
from hpctrain.rundir.paths import RunPaths

if TYPE_CHECKING:
    import pandas

    from hpctrain.launch.handle import RunHandle
    from hpctrain.result import Result


class BatchPrediction(FunctionRun):
    """The run of a `BatchPredictor`: every rank scores.

    Parameters
    ----------
    scoring
        Dataset, model and output.
    scaling_config, run_config
        As in `hpctrain.BaseTrainer`.

    Raises
    ------
    ConfigError
        If `run_config` has a stop criterion.
    """

    def __init__(
        self,
        scoring: Scoring,
        *,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        super().__init__(scaling_config=scaling_config, run_config=run_config)
        self.scoring = scoring
        if self.run_config.stop is not None:
            raise ConfigError(
                f"RunConfig(stop={self.run_config.stop!r}) would end a prediction before all rows "
                f"are scored. Leave it out; to score fewer rows, predict on dataset.limit(n)."
            )
        if self.run_config.checkpoint_config == CheckpointConfig():
            # A prediction's checkpoints only show its progress.
            last_only = CheckpointConfig(num_to_keep=1)
            self.run_config = replace(self.run_config, checkpoint_config=last_only)

    def _make_worker_spec(self) -> WorkerSpec:
        return WorkerSpec(
            train_loop=score,
            train_loop_config={"scoring": self.scoring},
            takes_config=True,
            backend_config=BackendConfig(),
        )

    def finished_output(self) -> Output | None:
        """Return the output if another run has finished it.

        Not collective.

        Raises
        ------
        ConfigError
            If another prediction has written there.
        """
        scoring = self.scoring
        if (begun := _find_run(self.run_config)) is not None:
            scoring.output_in(begun.root).refuse_parts_of_another(scoring.identity)
        elif scoring.output is not None:
            scoring.output.check(keep_columns=scoring.keep_columns)
            return scoring.output if scoring.output.is_finished(scoring.identity) else None
        return None


class BatchPredictor:
    """Scores datasets with the model of a checkpoint, on as many ranks as wanted.

    Parameters
    ----------
    checkpoint
        Checkpoint of the model. Every rank loads it once, from the shared filesystem.
    predictor_cls
        Class that loads and calls the model.
    **predictor_kwargs
        Arguments of ``predictor_cls.from_checkpoint()``.

    Raises
    ------
    ConfigError
        If the checkpoint is of another framework.
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
                f"predictor_cls={predictor_cls!r} is not a class that extends "
                f"hpctrain.predict.Predictor. Give one, such as hpctrain.xgboost.XGBoostPredictor."
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
            If the checkpoint is of another framework.
        """
        return cls(checkpoint, predictor_cls, **kwargs)

    @classmethod
    def from_pandas_udf(
        cls, pandas_udf: Callable[[pandas.DataFrame], pandas.DataFrame]
    ) -> BatchPredictor:
        """Return a batch predictor that calls a function of a DataFrame. Not collective."""
        return cls(None, FunctionPredictor, function=pandas_udf)

    def get_preprocessor(self) -> Any:
        """Return the preprocessor of batches, or None. Not collective."""
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
        """Score a dataset, and return the predictions as a dataset.

        Not collective, unless this process is already a rank. It is a run like that of a trainer,
        in every home, with its directory, restarts and display. Rows are scored and written in
        parts. The same call after a failure scores only the missing parts; after success it returns
        the existing output.

        Parameters
        ----------
        data
            A `hpctrain.data.Dataset`, a path or paths, or arrays and frames in memory.
        feature_columns
            Columns for the predictor, after the preprocessor. None is those that the checkpoint
            names; if it names none, all but `keep_columns`.
        keep_columns
            Columns to copy beside the predictions, after the preprocessor.
        batch_size
            Rows of a batch for the predictor.
        output
            Path of the predictions. Its ending sets the format: ``.h5`` (virtual datasets over a
            file for each part), ``.parquet`` (a directory), ``.csv`` or ``.npy`` (one file). Rows
            are in the order of the input. None is ``artifacts/predictions.h5`` in the run
            directory.
        scaling_config, run_config
            As for a trainer.
        rows_per_part
            Rows of a part, rounded up to whole batches: each rank scores at most these again after
            a failure. None chooses by the number of ranks.
        **predict_kwargs
            Arguments of the predictor's ``predict()``. Ray Train's ``max_scoring_workers``,
            ``min_scoring_workers``, ``num_cpus_per_worker`` and ``num_gpus_per_worker`` replace a
            `scaling_config`; workers with GPUs load the predictor with ``use_gpu=True``.

        Raises
        ------
        ConfigError
            If the prediction is impossible, for example if a feature is missing, the output exists
            or the predictor lacks an argument; nothing is started then.
        LaunchError
            If the ranks, or the job, cannot be started.
        TrainingFailedError
            If the run fails or is stopped.
        """
        run = self._plan(
            data,
            feature_columns=feature_columns,
            keep_columns=keep_columns,
            batch_size=batch_size,
            output=output,
            scaling_config=scaling_config,
            run_config=run_config,
            rows_per_part=rows_per_part,
            predict_kwargs=predict_kwargs,
        )
        if (done := run.finished_output()) is not None:
            if run.run_config.verbose:
                log(f"{done.path} is complete already; it is returned.", to=sys.stdout)
            return done.read()
        result = run.fit()
        # If this process is a rank, only rank 0 logs.
        is_speaker = environ.variable(environ.RANK_MARKER) in (None, "0")
        if run.run_config.verbose and is_speaker and "output" in result.metrics:
            log(f"{describe_result(result)}")
        return run.scoring.output_in(result.path).read()

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
        """Begin to score a dataset and return at once; the run does not need this process.

        Not collective. Like ``submit()`` of a trainer. After the run,
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
            If the prediction is impossible, or the output exists; nothing is started then.
        LaunchError
            If Slurm refuses the job.
        """
        run = self._plan(
            data,
            feature_columns=feature_columns,
            keep_columns=keep_columns,
            batch_size=batch_size,
            output=output,
            scaling_config=scaling_config,
            run_config=run_config,
            rows_per_part=rows_per_part,
            predict_kwargs=predict_kwargs,
        )
        if (done := run.finished_output()) is not None:
            raise ConfigError(
                f"{done.path} holds these predictions already, so there is no run to submit. Call "
                f"predict(), which returns them, or choose another output."
            )
        return run.submit()

    def _plan(
        self,
        data: Any,
        *,
        feature_columns: Sequence[str] | None,
        keep_columns: Sequence[str] | None,
        batch_size: int,
        output: str | PathLike[str] | None,
        scaling_config: ScalingConfig | None,
        run_config: RunConfig | None,
        rows_per_part: int | None,
        predict_kwargs: dict[str, Any],
    ) -> BatchPrediction:
        """Return the run of a prediction."""
        scaling_config, predictor_kwargs = take_scaling(
            predict_kwargs, scaling_config, self._predictor_cls, self._predictor_kwargs
        )
        dataset = as_dataset(data)
        place = None if output is None else Output.at(output)
        check_arguments(self._predictor_cls, predict_kwargs, own=_OWN_ARGUMENTS)
        scoring = plan_scoring(
            dataset,
            predictor_cls=self._predictor_cls,
            predictor_kwargs=predictor_kwargs,
            predict_kwargs=predict_kwargs,
            checkpoint=None if self._checkpoint is None else Path(self._checkpoint.path),
            model=self._model,
            preprocessor=self.get_preprocessor(),
            replaces_preprocessor=self._preprocessor,
            feature_columns=feature_columns,
            keep_columns=keep_columns or (),
            batch_size=batch_size,
            rows_per_part=rows_per_part,
            output=place,
        )
        return BatchPrediction(scoring, scaling_config=scaling_config, run_config=run_config)


_OWN_ARGUMENTS = tuple(inspect.signature(BatchPredictor.predict).parameters)[1:-1]


def describe_result(result: Result) -> str:
    """Return one line about a finished prediction. Not collective."""
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


def _find_run(run_config: RunConfig) -> RunPaths | None:
    """Return the run's directory if the run has begun; its output may be in there."""
    if run_config.name is None:
        return None
    paths = RunPaths(Path(run_config.storage_path).absolute() / run_config.name)
    return paths if paths.status.exists() else None
