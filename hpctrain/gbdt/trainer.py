"""`GBDTTrainer`: base class of the trainers of gradient-boosted trees."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.backend import BackendConfig
from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import column_names, given_or_default
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError, MissingDatasetError
from hpctrain.gbdt.boosting import TRAIN, Boosting, EarlyStopping, Ingest, check_same_columns
from hpctrain.trainer import DataParallelTrainer, TrainLoop

if TYPE_CHECKING:
    from hpctrain.gbdt.checkpoint import ModelCheckpoint
    from hpctrain.preprocessors import Preprocessor
    from hpctrain.validation_config import ValidationConfig

_DISTRIBUTED = "distributed"
"""Ray Train's argument for whether each rank reads a part."""
_GIVE_ONE = "it is Ray Train's name of dataset_params, which is given too. Give one of them."
# Arguments of xgboost_ray's matrix that name a column.
_COLUMNS_OF_MATRIX = {
    "group": "group_column=",
    "label": "label_column=",
    "qid": "group_column=",
    "weight": "weight_column=",
}


_STORED = (
    *("params", "num_boost_round", "label_column", "weight_column", "group_column"),
    *("categorical_columns", "early_stopping", "ingest", "dataset_params", "train_kwargs"),
)
"""Arguments of the trainer that its loop has as they are."""


class GBDTTrainer(DataParallelTrainer):
    """Trains trees on every worker's part of ``datasets["train"]``.

    There are two forms. With `params`, `label_column` and `num_boost_round`, hpctrain runs the
    boosting loop. With `train_loop_per_worker`, the user's function calls the library, and the
    arguments of the first form are not allowed.

    Parameters
    ----------
    train_loop_per_worker, train_loop_config, backend_config
        As in `hpctrain.DataParallelTrainer`.
    datasets
        Datasets by name: pandas data frames, or datasets of hpctrain. Trees are trained on
        ``train``; all are evaluated after each round, as ``{dataset}-{metric}``.
    label_column
        Column to predict. All others are features, except those of the next two.
    params
        Parameters of the library.
    num_boost_round
        Total number of rounds: a run that resumes from a checkpoint of 10 rounds adds the rest.
    weight_column
        Column with the weights of rows.
    group_column
        Column of the group that a row belongs to, for ranking. Rows of a group are adjacent.
    categorical_columns
        Categorical columns. Columns of pandas' category type, or of Arrow's dictionary type, always
        are.
    early_stopping
        When to stop before the last round. The last checkpoint then holds the best rounds.
    ingest
        ``memory``: each rank reads its rows once, into a matrix. ``stream``: rows are added to the
        library's compressed form batch by batch, which reads them several times. ``external``: that
        form stays on the node's disk, if the library supports it.
    dataset_params
        Further arguments of the library's dataset.
    dmatrix_params
        The same by name of a dataset, as in Ray Train 2.6; all datasets need the same arguments.
    train_kwargs
        Further arguments of the library's ``train()``.
    validation_config
        As in `hpctrain.DataParallelTrainer`. Without a `train_loop_per_worker` every checkpoint is
        validated.
    scaling_config, dataset_config, run_config, metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.BaseTrainer`. ``CheckpointConfig(checkpoint_frequency=...)`` also saves
        checkpoints between rounds; ``checkpoint_at_end=False`` saves none at the end.

    Raises
    ------
    ConfigError
        If arguments of both forms are given, there is no ``train`` dataset, or a dataset lacks a
        column.
    """

    _boosting_cls: ClassVar[type[Boosting]]
    _instead_of_dmatrix_params: ClassVar[str] = ""

    def __init__(
        self,
        train_loop_per_worker: TrainLoop | None = None,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        backend_config: BackendConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        label_column: str | None = None,
        params: Mapping[str, Any] | None = None,
        num_boost_round: int | None = None,
        weight_column: str | None = None,
        group_column: str | None = None,
        categorical_columns: Sequence[str] = (),
        early_stopping: EarlyStopping | None = None,
        ingest: Ingest = "memory",
        dataset_params: Mapping[str, Any] | None = None,
        dmatrix_params: Mapping[str, Mapping[str, Any]] | None = None,
        train_kwargs: Mapping[str, Any] | None = None,
        validation_config: ValidationConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: DataConfig | None = None,
        run_config: RunConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        own = {
            "label_column": label_column,
            "params": params,
            "num_boost_round": num_boost_round,
            "weight_column": weight_column,
            "group_column": group_column,
            "categorical_columns": categorical_columns or None,
            "early_stopping": early_stopping,
            "ingest": None if ingest == "memory" else ingest,
            "dataset_params": dataset_params,
            "dmatrix_params": dmatrix_params,
            "train_kwargs": train_kwargs,
        }
        if train_loop_per_worker is not None:
            self._refuse_given(own)
        else:
            train_loop_per_worker = self._make_boosting(
                own,
                datasets=datasets,
                train_loop_config=train_loop_config,
                run=given_or_default("run_config", run_config, RunConfig),
                scaling=given_or_default("scaling_config", scaling_config, ScalingConfig),
            )
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=backend_config,
            dataset_config=dataset_config,
            validation_config=validation_config,
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )
        if isinstance(self.train_loop_per_worker, Boosting):
            self._check_boosting(self.train_loop_per_worker)

    @classmethod
    def _make_boosting(
        cls,
        own: Mapping[str, Any],
        *,
        datasets: Mapping[str, Any] | None,
        train_loop_config: Mapping[str, Any] | None,
        run: RunConfig,
        scaling: ScalingConfig,
    ) -> Boosting:
        """Return hpctrain's loop. Not collective.

        Parameters
        ----------
        own
            Arguments of the form without a training function; None is not given.
        """
        given = {name: value for name, value in own.items() if value is not None}
        if "label_column" not in given or "params" not in given:
            raise ConfigError(
                f"{cls.__name__} needs label_column and params (and num_boost_round), or a "
                f"train_loop_per_worker."
            )
        if train_loop_config is not None:
            raise ConfigError(
                "train_loop_config is given without a train_loop_per_worker. Give the library's "
                "parameters as params."
            )
        if (by_dataset := given.pop("dmatrix_params", None)) is not None:
            of_all = cls._of_all_datasets(by_dataset, own["dataset_params"], datasets)
            given["dataset_params"] = of_all or {}
        mappings = {n: dict(given.get(n, {})) for n in ("params", "dataset_params", "train_kwargs")}
        checkpoints = run.checkpoint_config
        return cls._boosting_cls(
            **{"num_boost_round": 10, **given, **mappings},
            datasets=_order(datasets),
            checkpoint_frequency=checkpoints.checkpoint_frequency,
            checkpoint_at_end=checkpoints.checkpoint_at_end is not False,
            threads=scaling.num_cpus_per_worker,
            use_gpu=scaling.use_gpu,
        )

    @classmethod
    def _rebuild(cls, train_loop: TrainLoop, arguments: dict[str, Any]) -> DataParallelTrainer:
        if not isinstance(train_loop, Boosting):
            return cls(train_loop, **arguments)
        # The other fields follow from arguments, which may have changed.
        own = {name: getattr(train_loop, name) for name in _STORED}
        own["dataset_params"] = own["dataset_params"] or None
        rest = {name: value for name, value in arguments.items() if name != "train_loop_config"}
        return cls(**{**own, **rest})

    def _refuse_given(self, own: Mapping[str, Any]) -> None:
        """Refuse arguments of hpctrain's loop beside a training function."""
        if given := sorted(name for name, value in own.items() if value is not None):
            raise ConfigError(
                f"{type(self).__name__}(train_loop_per_worker=...) does not take {given}, because "
                f"the training function calls the library. Pass them in train_loop_config, or "
                f"leave train_loop_per_worker out."
            )

    def _check_boosting(self, boosting: Boosting) -> None:
        resumed = self.resume_from_checkpoint
        boosting.check_ranks(self.scaling_config.max_workers)
        if resumed is not None:
            boosting.check_resume()
        self._check_datasets(boosting)
        # A missing checkpoint may not be needed: the run may have its own by now.
        if resumed is not None and resumed.path.exists():
            self._checkpoint_cls().check(resumed.path)

    @classmethod
    def _of_all_datasets(
        cls,
        dmatrix_params: Mapping[str, Mapping[str, Any]],
        dataset_params: Mapping[str, Any] | None,
        datasets: Mapping[str, Any] | None,
    ) -> Mapping[str, Any] | None:
        """Return the dataset_params for Ray Train's dmatrix_params. Not collective."""
        names = list(datasets or {})
        if unknown := [name for name in dmatrix_params if name not in names]:
            raise MissingDatasetError(
                f"dmatrix_params has {unknown[0]!r}, but datasets has {names}. Give arguments by "
                f"the name of a dataset."
            )
        by_name = {name: dict(dmatrix_params.get(name) or {}) for name in names}
        for name, of_one in by_name.items():
            if not of_one.pop(_DISTRIBUTED, True):
                raise ConfigError(
                    f"dmatrix_params={{{name!r}: {{{_DISTRIBUTED!r}: False}}}}: each rank reads "
                    f"its part of the rows. Name the datasets to split, always with {TRAIN!r}, in "
                    f"DataConfig(datasets_to_split=[...])."
                )
        if not any(by_name.values()):
            return dataset_params
        instead = cls._instead_of_dmatrix_params
        if dataset_params is not None or instead:
            raise ConfigError(f"dmatrix_params={dict(dmatrix_params)!r}: {instead or _GIVE_ONE}")
        params = by_name[names[0]]
        if columns := sorted(_COLUMNS_OF_MATRIX.keys() & params.keys()):
            raise ConfigError(
                f"dmatrix_params has {columns[0]!r}: give the trainer "
                f"{_COLUMNS_OF_MATRIX[columns[0]]}, a column of the datasets."
            )
        if any(of_one != params for of_one in by_name.values()):
            raise ConfigError(
                f"dmatrix_params={dict(dmatrix_params)!r}: the arguments of datasets {names} "
                f"differ. Give each the same, or use dataset_params=."
            )
        return params

    @property
    def dmatrix_params(self) -> dict[str, dict[str, Any]]:
        """Ray Train's name of ``dataset_params``: for each dataset, with whether it is split."""
        loop = self.train_loop_per_worker
        if not isinstance(loop, Boosting):
            return {}
        return {
            name: {**loop.dataset_params, **({_DISTRIBUTED: True} if self._is_split(name) else {})}
            for name in self.datasets
        }

    @classmethod
    @abc.abstractmethod
    def _checkpoint_cls(cls) -> type[ModelCheckpoint[Any]]:
        """Return the class of its checkpoints."""

    def _has_loop(self) -> bool:
        return isinstance(self.train_loop_per_worker, Boosting)

    def _check_datasets(self, boosting: Boosting) -> None:
        _order(self.datasets)
        split = self.dataset_config.datasets_to_split
        if split != "all" and TRAIN not in split:
            raise ConfigError(
                f"DataConfig(datasets_to_split={list(split)}) does not split {TRAIN!r}, so every "
                f"rank would train on the same rows. Add {TRAIN!r} to datasets_to_split."
            )
        known: dict[str, list[str]] = {}
        for name, dataset in self.datasets.items():
            # A preprocessor may add and drop columns: then the ranks check them.
            columns = column_names(dataset) if self.preprocessor is None else None
            if columns is not None:
                known[name] = columns
                boosting.check_columns(name, columns)
            self._check_rows(name, dataset)
        for name, columns in known.items():
            check_same_columns(f"dataset {name!r}", columns, known.get(TRAIN, columns))

    def _check_rows(self, name: str, dataset: Any) -> None:
        try:
            rows = len(dataset) if hasattr(dataset, "iloc") else dataset.num_rows
        except (AttributeError, ConfigError):
            # The number is known only after reading all rows: then the ranks check it.
            return
        workers = max(self.scaling_config.min_workers, 1) if self._is_split(name) else 1
        if rows < workers:
            raise ConfigError(
                f"dataset {name!r} has {rows} rows for {workers} workers, so a worker would have "
                f"no row. Use fewer workers, or more rows."
            )


def _order(datasets: Mapping[str, Any] | None) -> tuple[str, ...]:
    names = list(datasets or {})
    if TRAIN not in names:
        raise MissingDatasetError(
            f"datasets has {sorted(names) or 'nothing'}, but no {TRAIN!r}, which the trees are "
            f"trained on. Give datasets={{'train': ...}}."
        )
    return (TRAIN, *(name for name in names if name != TRAIN))
