"""`Boosting`: the loop of a tree trainer, as a frozen value that is pickled for the ranks."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from hpctrain.checks import check_choice, check_column, check_count, check_type, is_number
from hpctrain.errors import ConfigError

Ingest = Literal["memory", "stream", "external"]

TRAIN = "train"
"""Name of the dataset that the trees are trained on."""


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """When to stop before the last round, decided once for all ranks.

    Each checkpoint holds the best value so far, so the decision survives a restart.
    """

    rounds: int
    """Rounds without a better value after which boosting stops."""
    metric: str | None = None
    """``{dataset}-{metric}``, as it is reported. None is the last metric of the last dataset other
    than ``train``; of ``train`` if there is no other."""
    mode: Literal["min", "max"] | None = None
    """Whether small or large values are better. None is the library's rule for its metric."""
    min_delta: float = 0.0
    """Least improvement that counts."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_count("EarlyStopping(rounds=...)", self.rounds, at_least=1)
        if self.mode is not None:
            check_choice("EarlyStopping(mode=...)", self.mode, ("min", "max"))
        if not is_number(self.min_delta) or self.min_delta < 0:
            raise ConfigError(
                f"EarlyStopping(min_delta={self.min_delta!r}) is not a number of 0 or more. Give "
                f"one, such as 0.001."
            )


EACH_ROW = "it has a value for each row, but each rank reads its own rows: leave it out"
"""Why hpctrain does not accept an argument of the library's dataset."""

COMMON_DATASET_ARGUMENTS = {
    "data": "use datasets",
    "label": "use label_column",
    "weight": "use weight_column",
    "group": "use group_column",
}


@dataclass(frozen=True, kw_only=True)
class Boosting(abc.ABC):
    """A boosting loop with its settings; a subclass calls its library. It is a training function.

    It reads its datasets with ``get_dataset_shard()``.
    """

    params: Mapping[str, Any]
    """Parameters of the library."""
    num_boost_round: int
    """Total rounds, including those of the checkpoint that a run resumes from."""
    datasets: Sequence[str]
    """Names of the datasets, ``train`` first. Each is evaluated after each round."""
    label_column: str
    weight_column: str | None = None
    group_column: str | None = None
    """Column of the query that a row belongs to, for ranking. Rows of a query are adjacent."""
    categorical_columns: Sequence[str] = ()
    early_stopping: EarlyStopping | None = None
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool = True
    ingest: Ingest = "memory"
    dataset_params: Mapping[str, Any] = field(default_factory=dict)
    train_kwargs: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    """Most threads of each rank: all ranks of a node together use at most its CPUs."""
    use_gpu: bool = False

    _TRAIN_ARGUMENTS: ClassVar[Mapping[str, str]]
    """Arguments of the library's ``train()`` that the trainer sets, and what to use instead."""
    _DATASET_ARGUMENTS: ClassVar[Mapping[str, str]]
    """Arguments of the library's dataset not allowed in `dataset_params`, and what to use."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Hyperparameters for trackers."""
        return {"params": dict(self.params), "num_boost_round": self.num_boost_round}

    def __post_init__(self) -> None:
        """Check the user's settings."""
        check_type("params", self.params, Mapping)
        check_count("num_boost_round", self.num_boost_round, at_least=1)
        label: object = self.label_column
        if not isinstance(label, str) or not label:
            raise ConfigError(
                f"label_column={label!r} is not the name of a column. Name the column to predict."
            )
        if isinstance(self.categorical_columns, str):
            raise ConfigError(
                f"categorical_columns={self.categorical_columns!r} is a text, not a list of column "
                f"names. Give [{self.categorical_columns!r}]."
            )
        for column in self.categorical_columns:
            if column in (self.label_column, self.weight_column, self.group_column):
                raise ConfigError(
                    f"categorical_columns has {column!r}, which is not a feature but the label, "
                    f"the weight or the group. Leave it out."
                )
        for name in self._TRAIN_ARGUMENTS.keys() & self.train_kwargs.keys():
            raise ConfigError(
                f"train_kwargs={{{name!r}: ...}}: the trainer sets {name}. Use "
                f"{self._TRAIN_ARGUMENTS[name]}."
            )
        for name in self._DATASET_ARGUMENTS.keys() & self.dataset_params.keys():
            raise ConfigError(
                f"dataset_params={{{name!r}: ...}} would not have the effect of {name}: "
                f"{self._DATASET_ARGUMENTS[name]}."
            )
        if self.early_stopping is not None:
            check_type("early_stopping", self.early_stopping, EarlyStopping)
        if self.ingest != "memory" and self.group_column is not None:
            raise ConfigError(
                f"ingest={self.ingest!r} with group_column={self.group_column!r}: groups are "
                f"assembled in memory. Use ingest='memory'."
            )

    def check_columns(self, dataset: str, columns: Iterable[object]) -> None:
        """Check that a dataset has the named columns. Not collective.

        Raises
        ------
        ConfigError
            If it lacks one; the message names the columns that it has.
        """
        there = list(columns)
        for what, column in (
            ("label_column", self.label_column),
            ("weight_column", self.weight_column),
            ("group_column", self.group_column),
            *(("categorical_columns", column) for column in self.categorical_columns),
        ):
            if column is not None:
                check_column(what, column, dataset=dataset, columns=there)

    def check_ranks(self, num_ranks: int) -> None:  # noqa: B027  # most work with any number
        """Check that this number of ranks can train together. Not collective.

        Raises
        ------
        ConfigError
            If a setting prevents it; the message names the setting.
        """

    def check_resume(self) -> None:  # noqa: B027  # most models can be boosted further
        """Check that the library can boost a model further. Not collective.

        Raises
        ------
        ConfigError
            If a setting prevents it; the message names the setting.
        """

    @property
    def no_features(self) -> tuple[str, ...]:
        """Columns that are not features."""
        columns = (self.label_column, self.weight_column, self.group_column)
        return tuple(column for column in columns if column is not None)

    def is_finished(self, done: int, *, is_over: bool) -> bool:
        """Return whether a checkpoint leaves nothing to do. Not collective.

        Parameters
        ----------
        done
            Rounds of its model.
        is_over
            Whether early stopping ended it.

        Raises
        ------
        ConfigError
            If it has more rounds than `num_boost_round`.
        """
        # Without early stopping, a model that was stopped early is boosted further.
        is_over = is_over and self.early_stopping is not None
        if done > self.num_boost_round and not is_over:
            raise ConfigError(
                f"num_boost_round={self.num_boost_round}, but the checkpoint to resume from has "
                f"{done} rounds already. It is the total number of rounds: give more than {done}, "
                f"or begin without the checkpoint."
            )
        return is_over or done == self.num_boost_round

    def __call__(self) -> None:
        """Boost, from the newest checkpoint. Collective."""
        from hpctrain.gbdt.node_cpus import count_threads
        from hpctrain.worker.context import active_worker

        worker = active_worker(type(self).__name__)
        threads = count_threads(self.threads, worker.context.world, worker.comm)
        replace(self, threads=threads).boost()

    @abc.abstractmethod
    def boost(self) -> None:
        """Boost with the library. Collective."""


def check_same_columns(where: str, columns: Collection[str], of_train: Collection[str]) -> None:
    """Check that columns are those of ``train``; their order may differ. Not collective.

    Parameters
    ----------
    where
        Owner of the columns, for the error.

    Raises
    ------
    ConfigError
        If they are not; the message names a column that differs.
    """
    for column in sorted({*columns} ^ {*of_train}):
        has, lacks = where, "dataset 'train'"
        if column in of_train:
            has, lacks = lacks, has
        raise ConfigError(
            f"{has} has a column {column!r} that {lacks} lacks. All datasets, and all files of a "
            f"dataset, need the same columns: drop this one, or add it."
        )


def gpu_index() -> int:
    """Return the index of this rank's first GPU among its visible devices. Not collective."""
    from hpctrain.worker.context import get_context

    return next(iter(get_context().gpu_indices), 0)
