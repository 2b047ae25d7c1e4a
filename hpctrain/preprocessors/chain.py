"""`Chain` and `BatchMapper`: preprocessors in sequence, and a function as a preprocessor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from hpctrain.checks import check_choice, check_count
from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import (
    BatchFormat,
    Rows,
    as_dataset,
    concatenate,
    map_slices,
    rows_of,
)
from hpctrain.preprocessors.preprocessor import FitStatus, Preprocessor
from hpctrain.world import Communicator, SerialComm


class Chain(Preprocessor):
    """Applies preprocessors one after the other.

    Each is fitted on the output of those before it. The data is read once for each preprocessor
    that is fitted.

    Parameters
    ----------
    *preprocessors
        Preprocessors, in the order in which they are applied.
    """

    def __init__(self, *preprocessors: Preprocessor) -> None:
        for preprocessor in preprocessors:
            if not isinstance(preprocessor, Preprocessor):
                raise ConfigError(
                    f"Chain(...) holds {preprocessor!r}, which is not a Preprocessor. Wrap a "
                    f"scikit-learn transformer in SklearnPreprocessor, a function in BatchMapper."
                )
        self.preprocessors = preprocessors

    def fit_status(self) -> FitStatus:
        """Return whether all, some or none of the preprocessors are fitted. Not collective."""
        found = {p.fit_status() for p in self.preprocessors} - {FitStatus.NOT_FITTABLE}
        if len(found) > 1:
            return FitStatus.PARTIALLY_FITTED
        return found.pop() if found else FitStatus.NOT_FITTABLE

    def has_stats(self) -> bool:
        """Return whether any preprocessor is fitted. Not collective."""
        return any(preprocessor.has_stats() for preprocessor in self.preprocessors)

    def get_input_columns(self) -> list[str]:
        """Return the columns that the dataset must have. Not collective."""
        return self._needed([p.get_input_columns() for p in self.preprocessors])

    def _needed(self, inputs: Sequence[Sequence[str]]) -> list[str]:
        """Return the input columns that no earlier preprocessor makes."""
        made: set[str] = set()
        needed: dict[str, None] = {}
        for preprocessor, names in zip(self.preprocessors, inputs, strict=True):
            needed.update(dict.fromkeys(name for name in names if name not in made))
            made.update(preprocessor.get_output_columns())
        return list(needed)

    def get_output_columns(self) -> list[str]:
        """Return the columns that are made and not dropped later. Not collective."""
        made: dict[str, None] = {}
        for preprocessor in self.preprocessors:
            made = {name: None for name in made if not preprocessor._drops(name)}
            made.update(dict.fromkeys(preprocessor.get_output_columns()))
        return list(made)

    def _learns_from_whole(self) -> bool:
        return any(preprocessor._learns_from_whole() for preprocessor in self.preprocessors)

    def _fit_whole(self, dataset: Any) -> Chain:
        if not self._learns_from_whole():
            return self._fit_rows(rows_of(dataset, self._columns_to_read()), SerialComm())
        dataset = as_dataset(dataset)
        for preprocessor in self.preprocessors:
            preprocessor._fit_whole(dataset)
            dataset = preprocessor.transform(dataset)
        return self

    def _fit_rows(self, rows: Rows, comm: Communicator) -> Chain:
        for preprocessor in self.preprocessors:
            preprocessor._fit_rows(rows, comm)
            rows = _mapped(rows, preprocessor)
        return self

    def _columns_to_read(self) -> list[str] | None:
        inputs = []
        for preprocessor in self.preprocessors:
            learned_from = preprocessor._columns_to_read()
            if learned_from is None:
                return None
            # The preprocessors after it are fitted on its output.
            inputs.append([*preprocessor.get_input_columns(), *learned_from])
        return self._needed(inputs)

    def _transform_format(self) -> BatchFormat:
        return "numpy"

    def _transform(self, batch: Any) -> Any:
        return reduce(lambda made, p: p._transform(made), self.preprocessors, batch)

    def _keeps_rows(self) -> bool:
        return all(preprocessor._keeps_rows() for preprocessor in self.preprocessors)

    def _configuration(self) -> dict[str, Any]:
        return {"preprocessors": list(self.preprocessors)}

    def __repr__(self) -> str:
        """Return the call that makes an unfitted one."""
        return f"Chain({', '.join(map(repr, self.preprocessors))})"


class BatchMapper(Preprocessor):
    """Applies a function of your own to each batch.

    Parameters
    ----------
    fn
        Takes a batch and returns one. The result must not depend on how rows are split into
        batches.
    batch_format
        Format of the batch that it takes: ``"numpy"``, a dict of arrays, or a bare array if a
        predictor gets one; ``"pandas"`` or ``"pyarrow"``.
    batch_size
        Most rows of a batch; None is as many as are read at once.
    """

    _is_fittable = False

    def __init__(
        self,
        fn: Callable[[Any], Any],
        batch_format: BatchFormat = "numpy",
        batch_size: int | None = None,
    ) -> None:
        check_choice("batch_format", batch_format, ("numpy", "pandas", "pyarrow"))
        check_count("batch_size", batch_size, at_least=1, optional=True)
        if not callable(fn):
            raise ConfigError(f"fn={fn!r} cannot be called. Give a function of a batch.")
        self.fn = fn
        self.batch_format = batch_format
        self.batch_size = batch_size

    def _columns_to_read(self) -> list[str] | None:
        return None

    def _keeps_rows(self) -> bool:
        return False

    def _transform_format(self) -> BatchFormat:
        return "numpy"

    def _transform(self, batch: Any) -> Any:
        if isinstance(batch, np.ndarray) and self.batch_format == "numpy":
            return self._transform_array(batch)
        return map_slices(self.fn, batch, form=self.batch_format, batch_size=self.batch_size)

    def _transform_array(self, array: np.ndarray[Any, Any]) -> Any:
        """Return the function's result for a bare array, which predictors accept too."""
        size = self.batch_size or max(1, len(array))
        starts = range(0, max(1, len(array)), size)
        made = [self.fn(array[start : start + size]) for start in starts]
        if len(made) == 1:
            return made[0]
        return np.concatenate(made) if isinstance(made[0], np.ndarray) else concatenate(made)


def _mapped(rows: Rows, preprocessor: Preprocessor) -> Rows:
    return lambda: map(preprocessor._transform, rows())
