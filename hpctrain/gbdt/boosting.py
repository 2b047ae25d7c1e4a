"""`Boosting`: what the loop of a tree trainer does, as a frozen value that travels to the ranks."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from hpctrain.checks import check_choice, check_column, check_count, check_type, is_number
from hpctrain.errors import ConfigError

Ingest = Literal["memory", "stream", "external"]

TRAIN = "train"
"""Name of the dataset that trees are grown on."""


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """When to stop before the last round, decided once for all ranks.

    The decision survives a restart: what has been seen so far is part of each checkpoint.
    """

    rounds: int
    """Rounds without a better value after which boosting stops."""
    metric: str | None = None
    """``{dataset}-{metric}``, as it is reported. None: the last metric of the last dataset that is
    not ``train``; of ``train`` if there is no other."""
    mode: Literal["min", "max"] | None = None
    """Whether small or large values are better. None: what the library says of its metric."""
    min_delta: float = 0.0
    """By how much a value must be better to count."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_count("EarlyStopping(rounds=...)", self.rounds, at_least=1)
        if self.mode is not None:
            check_choice("EarlyStopping(mode=...)", self.mode, ("min", "max"))
        if not is_number(self.min_delta) or self.min_delta < 0:
            raise ConfigError(
                f"EarlyStopping(min_delta={self.min_delta!r}): a number that is not negative."
            )


EACH_ROW = "it has a value for each row, and each rank reads its own rows: leave it out"
"""Why a dataset's argument is refused."""

COMMON_DATASET_ARGUMENTS = {
    "data": "use datasets",
    "label": "use label_column",
    "weight": "use weight_column",
    "group": "use group_column",
}


@dataclass(frozen=True, kw_only=True)
class Boosting(abc.ABC):
    """A boosting loop with its settings; a subclass calls its library. It is a training function.

    What it reads, it reads through ``get_dataset_shard()``.
    """

    params: Mapping[str, Any]
    """Parameters of the library."""
    num_boost_round: int
    """Rounds in all, those of the checkpoint that a run resumes from included."""
    datasets: Sequence[str]
    """Their names: ``train`` first. Each of them is evaluated after each round."""
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
    """Of each rank, at most: not more than the CPUs of a node between all of its ranks."""
    use_gpu: bool = False

    _TRAIN_ARGUMENTS: ClassVar[Mapping[str, str]]
    """Arguments of the library's ``train()`` that the trainer gives, and what they are of."""
    _DATASET_ARGUMENTS: ClassVar[Mapping[str, str]]
    """Arguments of the library's dataset that cannot be in `dataset_params`, and what to use."""

    @property
    def parameters(self) -> dict[str, Any]:
        """What trackers show as hyperparameters."""
        return {"params": dict(self.params), "num_boost_round": self.num_boost_round}

    def __post_init__(self) -> None:
        """Check what a user gave."""
        check_type("params", self.params, Mapping)
        check_count("num_boost_round", self.num_boost_round, at_least=1)
        label: object = self.label_column
        if not isinstance(label, str) or not label:
            raise ConfigError(
                f"label_column={label!r}: the name of the column to predict is needed."
            )
        if isinstance(self.categorical_columns, str):
            raise ConfigError(
                f"categorical_columns={self.categorical_columns!r}: a list of column names."
            )
        for column in self.categorical_columns:
            if column in (self.label_column, self.weight_column, self.group_column):
                raise ConfigError(
                    f"categorical_columns has {column!r}, which is no feature: it is the label, "
                    f"the weight or the group. Leave it out."
                )
        for name in self._TRAIN_ARGUMENTS.keys() & self.train_kwargs.keys():
            raise ConfigError(
                f"train_kwargs={{{name!r}: ...}}: the trainer sets it. Use "
                f"{self._TRAIN_ARGUMENTS[name]}."
            )
        for name in self._DATASET_ARGUMENTS.keys() & self.dataset_params.keys():
            raise ConfigError(
                f"dataset_params={{{name!r}: ...}} would have no effect, or another one: "
                f"{self._DATASET_ARGUMENTS[name]}."
            )
        if self.early_stopping is not None:
            check_type("early_stopping", self.early_stopping, EarlyStopping)
        if self.ingest != "memory" and self.group_column is not None:
            raise ConfigError(
                f"ingest={self.ingest!r} with group_column={self.group_column!r}: groups are put "
                f"together in memory. Use ingest='memory'."
            )

    def check_columns(self, dataset: str, columns: Iterable[object]) -> None:
        """Refuse a dataset that lacks a column. Not collective.

        Raises
        ------
        ConfigError
            The message names the columns that it has.
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
        """Refuse settings with which this many ranks would not train together. Not collective.

        Raises
        ------
        ConfigError
            The message names the setting.
        """

    def check_resume(self) -> None:  # noqa: B027  # most models can be boosted further
        """Refuse settings with which the library cannot go on with a model. Not collective.

        Raises
        ------
        ConfigError
            The message names the setting.
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
            Whether it was stopped early.

        Raises
        ------
        ConfigError
            If it has more rounds than are wanted.
        """
        # Without early stopping a model that was stopped is one to go on with.
        is_over = is_over and self.early_stopping is not None
        if done > self.num_boost_round and not is_over:
            raise ConfigError(
                f"num_boost_round={self.num_boost_round}, but the checkpoint to resume from has "
                f"{done} rounds already. It is the number of all rounds: ask for more than {done}, "
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
        """Call the library. Collective."""


def check_same_columns(where: str, columns: Collection[str], of_train: Collection[str]) -> None:
    """Refuse columns that are not those of ``train``; their order may differ. Not collective.

    Parameters
    ----------
    where
        What they are of, for the error.

    Raises
    ------
    ConfigError
        The message names a column that differs.
    """
    for column in sorted({*columns} ^ {*of_train}):
        has, lacks = where, "dataset 'train'"
        if column in of_train:
            has, lacks = lacks, has
        raise ConfigError(
            f"{has} has a column {column!r} that {lacks} lacks. All datasets, and all files of "
            f"a dataset, need the same columns: drop it, or add it."
        )


def gpu_index() -> int:
    """Return the number of this rank's first GPU among those that it sees. Not collective."""
    from hpctrain.worker.context import get_context

    return next(iter(get_context().gpu_indices), 0)
