"""`Preprocessor`: the base class of all preprocessors."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import items_of
from hpctrain.data.categories import plain
from hpctrain.errors import ConfigError, PreprocessorNotFittedException
from hpctrain.preprocessors.batches import (
    Array,
    BatchFormat,
    Rows,
    as_dataset,
    map_slices,
    rows_of,
)
from hpctrain.world import Communicator

P = TypeVar("P", bound="Preprocessor")


class Preprocessor:
    """Is fitted on a dataset, and transforms batches with its statistics.

    In a class of your own, define ``_transform_pandas(df)`` or ``_transform_numpy(batch)``, which
    take a whole batch and return one. ``_fit(dataset)`` learns from a `hpctrain.data.Dataset`,
    stores the result in attributes whose names end with ``_``, and returns ``self``; without it,
    set ``_is_fittable = False``. Derive from `ColumnPreprocessor` if the ranks are to compute
    statistics together.
    """

    class FitStatus(str, Enum):
        """Whether a preprocessor can be applied."""

        NOT_FITTABLE = "NOT_FITTABLE"
        """It needs no fit and can be applied at once."""
        NOT_FITTED = "NOT_FITTED"
        PARTIALLY_FITTED = "PARTIALLY_FITTED"
        """Some preprocessors of a Chain are fitted, and others are not."""
        FITTED = "FITTED"

    _is_fittable: ClassVar[bool] = True
    _version: ClassVar[int] = 1
    """Incremented when the same parameters give other numbers; stored with them."""
    _fitted = False
    stats_: dict[str, Any] | None = None
    """Fitted statistics, such as ``{"mean(x)": 0.5}``; None before the fit."""

    # What a subclass defines.

    def _fit(self, ds: Any) -> Preprocessor:
        """Learn from all rows. Not collective: rank 0 calls it."""
        raise ConfigError(
            f"{type(self).__name__} defines no fit. Define _fit(self, ds), or set "
            f"_is_fittable = False."
        )

    def _transform_pandas(self, df: Any) -> Any:
        """Return a DataFrame for a batch that is one. Not collective."""
        raise NotImplementedError

    def _transform_numpy(self, np_data: Any) -> Any:
        """Return a dict of arrays for a batch that is one. Not collective."""
        raise NotImplementedError

    def _get_transform_config(self) -> dict[str, Any]:
        """Return ``{"batch_size": n}`` for batches of at most n rows. Not collective."""
        return {}

    def get_input_columns(self) -> list[str]:
        """Return the input columns, as far as they are known. Not collective."""
        return []

    def get_output_columns(self) -> list[str]:
        """Return the output columns, as far as they are known. Not collective."""
        return []

    def _drops(self, name: str) -> bool:
        """Return whether the transform drops a column that is not an output."""
        return False

    # Public interface.

    def fit_status(self) -> FitStatus:
        """Return whether the preprocessor can be applied. Not collective."""
        if not self._is_fittable:
            return FitStatus.NOT_FITTABLE
        learned = any(
            name.endswith("_") and value is not None for name, value in vars(self).items()
        )
        return FitStatus.FITTED if self._fitted or learned else FitStatus.NOT_FITTED

    def has_stats(self) -> bool:
        """Return whether it is fitted. Not collective."""
        return bool(self.stats_)

    @classmethod
    def preferred_batch_format(cls) -> BatchFormat:
        """Return the format to use if both transforms are defined. Not collective."""
        return "pandas"

    def fit(self: P, ds: Any) -> P:
        """Learn from a whole dataset in this process, and return the preprocessor.

        Not collective.

        Parameters
        ----------
        ds
            A Dataset, a pandas DataFrame, an Arrow table, a dict of arrays, or a list of such
            batches.

        Raises
        ------
        ConfigError
            If a column is missing, is of a type that cannot be learned from, or holds no value.
        """
        return self._fit_whole(ds)

    def fit_shard(self: P, shard: Any, comm: Communicator) -> P:
        """Learn from the shards of all ranks together, and return the preprocessor.

        Collective. The statistics are the same on every rank, to the last bit. An error on one rank
        raises on all.

        Parameters
        ----------
        shard
            This rank's rows, in one of the forms that `fit` takes. A shard may be empty.
        comm
            The communicator of the ranks.

        Raises
        ------
        ConfigError
            If a column is missing, is of a type that cannot be learned from, or holds no value.
        """
        if not all(hasattr(comm, name) for name in ("size", "rank", "allreduce")):
            raise ConfigError(
                f"fit_shard(..., comm={shown(comm)}) is not a communicator. Give that of "
                f"the ranks, such as mpi4py.MPI.COMM_WORLD, or call fit() in one process."
            )
        if self._learns_from_whole():
            if comm.size > 1:
                raise ConfigError(
                    f"{type(self).__name__} learns from a whole dataset, but each of {comm.size} "
                    f"ranks has a shard of it. Give it to a trainer, or call fit() before the "
                    f"ranks start."
                )
            return self._fit_whole(shard)
        return self._fit_rows(rows_of(shard, self._columns_to_read()), comm)

    def fit_transform(self, ds: Any) -> Any:
        """Learn from a dataset, and return it transformed. Not collective."""
        return self.fit(ds).transform(ds)

    def transform(self, ds: Any) -> Any:
        """Return a transformed dataset, of the same kind as the given one.

        Not collective.

        Parameters
        ----------
        ds
            A Dataset, which is transformed when it is read, or any input of `transform_batch`.

        Raises
        ------
        PreprocessorNotFittedException
            If it needs a fit and is not fitted.
        """
        self._refuse_if_not_fitted()
        if not hasattr(ds, "map_batches"):
            return self.transform_batch(ds)
        return ds.map_batches(
            self._transform,
            batch_format=self._transform_format(),
            keeps_rows=self._keeps_rows(),
            zero_copy_batch=True,
        )

    def transform_batch(self, data: Any) -> Any:
        """Return a transformed batch, in the format of the given one.

        Not collective. The given batch does not change.

        Parameters
        ----------
        data
            A dict of arrays, a pandas DataFrame or an Arrow table.

        Raises
        ------
        PreprocessorNotFittedException
            If it needs a fit and is not fitted.
        ConfigError
            If a column is missing, or the batch has no named columns.
        """
        self._refuse_if_not_fitted()
        made = self._transform(data)
        # Only within a Dataset arrays keep categories.
        return plain(made) if isinstance(made, dict) else made

    def serialize(self) -> str:
        """Return the preprocessor as JSON. Not collective.

        It contains functions and objects of other packages as pickles.
        """
        from hpctrain.preprocessors.storage import serialize

        return serialize(self)

    @staticmethod
    def deserialize(serialized: str, *, trusted: bool = False) -> Preprocessor:
        """Return the preprocessor that `serialize` encoded.

        Not collective.

        Parameters
        ----------
        serialized
            The JSON.
        trusted
            Whether to unpickle functions and objects of other packages that this process has not
            pickled itself. Unpickling runs code: trust only your own files.

        Raises
        ------
        CheckpointError
            If it is damaged, or holds a pickle and is not trusted.
        """
        from hpctrain.preprocessors.storage import deserialize

        return deserialize(serialized, trusted=trusted)

    def __repr__(self) -> str:
        """Return the call that makes an unfitted preprocessor."""
        values = ", ".join(f"{k}={v!r}" for k, v in self._configuration().items())
        return f"{type(self).__name__}({values})"

    # Implementation.

    def _learns_from_whole(self) -> bool:
        """Return whether it is fitted on all rows in one process, or on the shards of ranks."""
        return self.fit_status() is not FitStatus.NOT_FITTABLE

    def _lacks_fit(self) -> bool:
        """Return whether it must be fitted, but defines no fit."""
        return self.fit_status() is FitStatus.NOT_FITTED and not any(
            getattr(type(self), name) is not getattr(Preprocessor, name)
            for name in ("fit", "_fit", "_fit_whole", "_fit_rows")
        )

    def _fit_whole(self: P, dataset: Any) -> P:
        if self._begin_fit():
            self._fit(as_dataset(dataset))
            self._fitted = True
        return self

    def _fit_rows(self: P, rows: Rows, comm: Communicator) -> P:
        """Learn from the rows of all ranks. Collective."""
        # The caller has checked that it is fitted on rows.
        return self

    def _begin_fit(self) -> bool:
        """Return whether it must be fitted; warn if it was fitted before."""
        status = self.fit_status()
        if status in (FitStatus.FITTED, FitStatus.PARTIALLY_FITTED):
            warnings.warn(
                f"{type(self).__name__} is fitted already; the new fit replaces its statistics.",
                stacklevel=4,
            )
        return status is not FitStatus.NOT_FITTABLE

    def _columns_to_read(self) -> list[str] | None:
        """Return the columns that fitting reads; None is all."""
        return None

    def _transform_format(self) -> BatchFormat:
        """Return the format of the batches that its transform takes."""
        cls = type(self)
        takes_pandas = cls._transform_pandas is not Preprocessor._transform_pandas
        takes_numpy = cls._transform_numpy is not Preprocessor._transform_numpy
        if not (takes_pandas or takes_numpy):
            raise ConfigError(
                f"{cls.__name__} defines no transform. Define _transform_pandas(self, df) or "
                f"_transform_numpy(self, batch)."
            )
        if takes_pandas and takes_numpy:
            return cls.preferred_batch_format()
        return "pandas" if takes_pandas else "numpy"

    def _transform(self, batch: Any) -> Any:
        form = self._transform_format()
        transform = self._transform_pandas if form == "pandas" else self._transform_numpy
        if form == "numpy" and isinstance(batch, np.ndarray):
            return transform(batch)
        batch_size = self._get_transform_config().get("batch_size")
        return map_slices(transform, batch, form=form, batch_size=batch_size)

    def _keeps_rows(self) -> bool:
        """Return whether the transform keeps the number of rows."""
        return False

    def _refuse_if_not_fitted(self) -> None:
        if self.fit_status() in (FitStatus.NOT_FITTED, FitStatus.PARTIALLY_FITTED):
            raise PreprocessorNotFittedException(
                f"{type(self).__name__} is {self.fit_status().value}: it must be fitted before it "
                f"is applied. Call fit(), or give it to a trainer."
            )

    def _configuration(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        parameters = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in parameters if hasattr(self, name)}

    @property
    def _stats(self) -> dict[str, Any]:
        assert self.stats_ is not None
        return self.stats_


FitStatus: TypeAlias = Preprocessor.FitStatus


def check_columns(
    columns: Sequence[str], output_columns: Sequence[str] | None = None, *, what: str = "columns"
) -> list[str]:
    """Return the names of columns.

    Not collective.

    Raises
    ------
    ConfigError
        If it is not a list of names, is empty, repeats a name, or the number of outputs differs.
    """
    given = None if isinstance(columns, str) else items_of(columns)
    if given is None or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            f"{what}={shown(columns)} is not a list of names. Give one, such as ['x', 'y']."
        )
    names: list[str] = given
    if not names or len(set(names)) < len(names):
        what_is_wrong = "repeats a name" if names else "is empty"
        raise ConfigError(f"{what}={names} {what_is_wrong}. Give one or more names, each once.")
    if output_columns is None:
        return names
    outputs = check_columns(output_columns, what="output_columns")
    if len(outputs) != len(names):
        raise ConfigError(
            f"output_columns={outputs} has another length than columns={names}. Name "
            f"one output for each column."
        )
    return names


def check_outputs(columns: Sequence[str], output_columns: Sequence[str] | None) -> list[str]:
    """Return the names of the outputs; by default those of the columns.

    Not collective.

    Raises
    ------
    ConfigError
        As for `check_columns`.
    """
    names = check_columns(columns, output_columns)
    return names if output_columns is None else list(output_columns)


def per_row(values: Array, shape: tuple[int, ...]) -> Any:
    """Return a statistic in the shape of a row: a number, or an array. Not collective."""
    return values.reshape(shape) if shape else float(values[0])


def no_value(column: str) -> ConfigError:
    """Return the error for a column without usable values. Not collective."""
    return ConfigError(
        f"column {column!r} holds no value in any row of any rank, so nothing can be learned. "
        f"Check whether the dataset is empty, or leave the column out."
    )
