"""`ServedModel`: a predictor that is loaded in the background, and takes one call at a time."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain import timeouts
from hpctrain.data import types
from hpctrain.data.batch import num_rows
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.log import log_traceback
from hpctrain.missing import is_missing
from hpctrain.predict.batches import name_outputs
from hpctrain.predict.predictor import Predictor

# After these each further call to CUDA in the process fails, too: "sticky" errors of the CUDA
# Runtime API. Others, also those of cuBLAS, are of one request.
_LOST_GPU = re.compile(
    r"CUDA error: .*(illegal memory access|device-side assert|unspecified launch failure"
    r"|misaligned address|illegal instruction|uncorrectable ECC|hardware stack error"
    r"|launch timed out|invalid program counter|operation not supported on global/shared"
    r"|[Ii]nvalid access of peer GPU memory|uncorrectable NVLink"
    r"|tensor memory not completely freed|unknown error)"
)
_LARGEST = int(np.finfo(np.float64).max)


class ServedModel:
    """A predictor for a server.

    Parameters
    ----------
    load
        Returns the predictor; called in a thread, so that a server can answer meanwhile.
    name
        A readable name.
    max_rows
        Rows that one request may have.
    """

    def __init__(
        self, load: Callable[[], Predictor], *, name: str, max_rows: int = 100_000
    ) -> None:
        self.name = name
        self.max_rows = max_rows
        self.requests = 0
        """Number of requested predictions."""
        self.error: BaseException | None = None
        """Why the predictor could not be loaded, or can predict no more."""
        self._load = load
        self._predictor: Predictor | None = None
        self._one_at_a_time = threading.Lock()
        self._failed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpctrain-load", daemon=True)

    @property
    def is_loaded(self) -> bool:
        """Whether there is a predictor."""
        return self._predictor is not None

    @property
    def is_ready(self) -> bool:
        """Whether it can predict."""
        return self.is_loaded and self.error is None

    @property
    def features(self) -> list[str] | None:
        """Names of the features, if the predictor has them."""
        names = getattr(self._predictor, "features", None)
        return None if names is None else list(names)

    def start(self) -> None:
        """Start loading. Not collective."""
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is loaded; return whether it is. Not collective.

        Raises
        ------
        BaseException
            The error of loading.
        """
        self._thread.join(timeout_s)
        if self.error is not None:
            raise self.error
        return self.is_ready

    def wait_for_failure(self, *, load_s: float) -> None:
        """Return once the model has an `error`. Not collective.

        Parameters
        ----------
        load_s
            Seconds in which it has to be loaded.
        """
        self._thread.join(load_s)
        if self._thread.is_alive():
            self._fail(
                CheckpointError(
                    f"{self.name} was not loaded within {timeouts.describe(load_s)}. See whether "
                    f"the filesystem of the checkpoint answers, and start the server again."
                )
            )
        self._failed.wait()

    def predict(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return predictions for columns of JSON values, as such. Not collective.

        Raises
        ------
        ConfigError
            If the columns are not those of the model, or no columns.
        """
        assert self._predictor is not None
        batch = {name: as_array(name, values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in batch.items()}
        if len(set(lengths.values())) != 1:
            raise ConfigError(f"columns of one length are needed, not {lengths}.")
        if not num_rows(batch):
            raise ConfigError("there are no rows.")
        if num_rows(batch) > self.max_rows:
            raise ConfigError(
                f"{num_rows(batch)} rows in one request, of at most {self.max_rows}. Send fewer, "
                f"or score files with hpctrain predict."
            )
        with self._one_at_a_time:
            self.requests += 1
            try:
                output = self._predictor.predict(batch)
            except ConfigError:
                raise
            except (TypeError, ValueError, LookupError) as error:
                # What a library says of a value does not say where it is.
                if isinstance(error, LookupError):
                    places = _unknown_values(columns, batch, error)
                else:
                    places = _odd_values(columns)
                if not places:
                    raise
                log_traceback(error)
                raise ConfigError(_blame(places, error)) from error
            except Exception as error:
                if _LOST_GPU.search(str(error)):
                    self._fail(error)
                raise
        predicted = name_outputs(output)
        if num_rows(predicted) != num_rows(batch):
            raise ConfigError(
                f"{type(self._predictor).__name__} gave {num_rows(predicted)} rows for "
                f"{num_rows(batch)}. One is needed for each."
            )
        return {name: as_json(values) for name, values in predicted.items()}

    def _run(self) -> None:
        try:
            self._predictor = self._load()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self._failed.set()


def as_array(name: str, values: Any) -> np.ndarray[Any, Any]:
    """Return a column of JSON values as an array; null among numbers is NaN. Not collective.

    Raises
    ------
    ConfigError
        If it is not a list, of numbers and texts, or of rows with unlike shapes.
    """
    if not isinstance(values, list):
        raise ConfigError(f"column {name!r} has to be a list with one value for each row.")
    if any(isinstance(value, str | dict) for value in values):
        _refuse_mixed(name, values)
        return np.array(values, dtype=object)
    try:
        array = np.asarray(values)
        if array.dtype.kind in "OU":
            cells = np.asarray(values, dtype=object)
            kinds = {type(value) for value in cells.reshape(-1)}
            if kinds & {str, dict}:
                _refuse_mixed(name, cells)
                return cells
            # Large integers, of which some are missing, stay objects, as in a batch.
            has_gaps = kinds == {int, type(None)} and array.ndim == 1
            _refuse_too_large(name, cells)
            array = types.with_missing(array) if has_gaps else array.astype(float)
        if array.dtype.kind == "f":
            _refuse_rounded(name, values, array)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"column {name!r} has rows of unlike shapes: {error}.") from error
    return array


def _refuse_mixed(name: str, rows: Sequence[Any] | np.ndarray[Any, Any]) -> None:
    """Refuse objects, and anything but texts and null in a column that has texts."""
    for row, value in _cells(rows):
        if isinstance(value, dict):
            raise ConfigError(
                f"row {row}, column {name!r}: {json.dumps(value)[:80]} is neither a number, nor a "
                f"text, nor a list of them."
            )
    for row, value in _cells(rows):
        if not isinstance(value, str) and value is not None:
            raise ConfigError(
                f"row {row}, column {name!r}: {value!r:.80} in a column that has texts. Send all "
                f"of its values as texts, or all as numbers."
            )


def _refuse_too_large(name: str, rows: Iterable[Any]) -> None:
    """Refuse integers beyond float64."""
    for row, value in _cells(rows):
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ConfigError(
                f"row {row}, column {name!r}: {value!s:.80} is larger than any float64. Send "
                f"numbers below 2**1024, or all values as texts."
            )


def _cells(rows: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the row of each value, and the value."""
    for row, value in enumerate(rows):
        for cell in value.reshape(-1) if isinstance(value, np.ndarray) else (value,):
            yield row, cell


def _refuse_rounded(name: str, values: list[Any], array: np.ndarray[Any, Any]) -> None:
    """Refuse integers that are not those of a JSON value any more, as one is a fraction."""
    for row, cells in enumerate(array) if (np.abs(array) >= types.EXACT).any() else ():
        given = np.asarray(values[row], dtype=object).reshape(-1)
        for value, number in zip(given, np.reshape(cells, -1), strict=True):
            if isinstance(value, int) and int(number) != value:
                raise ConfigError(
                    f"row {row}, column {name!r}: {value} would be rounded to {number}, as float64 "
                    f"is the type of the column. Send only integers in it, below 2**63."
                )


def _odd_values(columns: Mapping[str, Any]) -> list[str]:
    """Return where the first value of each column is that is no finite number."""
    places = []
    for name, values in columns.items():
        for row, value in enumerate(values):
            is_number = isinstance(value, int | float | list) and value == value
            if not is_number or value in (float("inf"), float("-inf")):
                places.append(f"row {row}, column {name!r}: {json.dumps(value)[:80]}")
                break
    return places


def _unknown_values(
    columns: Mapping[str, Any], batch: Mapping[str, Any], error: LookupError
) -> list[str]:
    """Return where the value that was not found is first in each column."""
    sought = error.args[0] if error.args else error
    if isinstance(sought, np.ndarray):
        return []
    places = []
    for name, values in batch.items():
        for row, cell in _cells(values):
            if cell == sought or (is_missing(cell) and is_missing(sought)):
                places.append(f"row {row}, column {name!r}: {json.dumps(columns[name][row])[:80]}")
                break
    return places


def _blame(places: list[str], error: Exception) -> str:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    if len(places) == 1:
        return f"{places[0]} cannot be predicted on: {reason}"
    return f"the model refuses the batch: {reason}. It may be about {'; '.join(places)}"


def as_json(values: np.ndarray[Any, Any]) -> Any:
    """Return an array as JSON values; what is no number is null. Not collective.

    A time is a text in ISO 8601, as is what is neither a number, a text nor a list of them.
    """
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        finite = np.isfinite(values)
        values = values.astype(object)
        values[~finite] = None
        return values.tolist()
    if values.dtype.kind == "M":
        texts = np.datetime_as_string(values).astype(object)
        texts[np.isnat(values)] = None
        return texts.tolist()
    return values.tolist() if values.dtype.kind in "biuf" else _cell_as_json(values.tolist())


def _cell_as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return as_json(value)
    if isinstance(value, np.generic):
        return as_json(value.reshape(1))[0]
    if isinstance(value, str):
        # A lone surrogate has no UTF-8.
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_cell_as_json(part) for part in value]
    if isinstance(value, Mapping):
        return {str(_cell_as_json(key)): _cell_as_json(part) for key, part in value.items()}
    if isinstance(value, int):
        return value
    if is_missing(value):
        return None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
