"""The types that columns have in batches: every value that is read becomes one of them, or raises.

Numbers, bools and times have NumPy's types, in the byte order of the machine. Texts are Python's,
in arrays of objects, None where one is missing. No conversion changes a value: `join` and
`cast_exactly` return the same values in one type, or fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np

from hpctrain.data.categories import categories_of, union, with_categories
from hpctrain.errors import ConfigError

EXACT = 2**53
"""Above it, float64 cannot represent all integers."""


def type_in_batches(dtype: np.dtype) -> np.dtype:
    """Return the type that a column of a NumPy type has in batches.

    Not collective.

    Examples
    --------
    >>> type_in_batches(np.dtype(">f4")), type_in_batches(np.dtype("<U7"))
    (dtype('float32'), dtype('O'))
    """
    if dtype.kind in "US":
        return np.dtype(object)
    return dtype if dtype.isnative else dtype.newbyteorder("=")


USUAL = frozenset(
    map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "O"))
)
"""Types that need no conversion: those of most columns."""


def as_in_batches(array: np.ndarray) -> np.ndarray:
    """Return an array in the type that it has in batches; itself if it has that type.

    Not collective. Bytes of fixed length, as in NumPy and HDF5, are decoded as UTF-8.

    Raises
    ------
    ConfigError
        If they are not UTF-8.
    """
    if array.dtype.isnative and array.dtype.kind not in "US":
        return array
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"bytes of type {array.dtype} are not text in UTF-8 ({error}). Decode them, or "
                f"give them as numbers: array.view('u1').reshape(len(array), -1)."
            ) from error
    return array.astype(type_in_batches(array.dtype), copy=False)


def cast_exactly(array: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Return values in another type, or None if a value would change.

    Not collective. None among objects becomes NaN among floats.

    Examples
    --------
    >>> cast_exactly(np.array([1, 44]), np.dtype(np.int8))
    array([ 1, 44], dtype=int8)
    >>> cast_exactly(np.array([1, 300]), np.dtype(np.int8)) is None
    True
    """
    if array.dtype == dtype:
        return array
    if dtype.hasobject:
        return array.astype(object)
    if array.dtype.hasobject:
        return _numbers_exactly(array, dtype)
    kinds = array.dtype.kind + dtype.kind
    if not (set(kinds) <= set("biuf") or kinds in ("cc", "MM", "mm", "SS", "UU")):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        again = cast.astype(array.dtype)
        # NaN does not equal itself. A negative and a large unsigned number may have the same bits.
        same = (again == array) | ((array != array) & (cast != cast))
        if set(kinds) == set("iu"):
            same &= (cast < 0) == (array < 0)
        elif kinds in ("if", "uf"):
            # The float next above the largest integer may be cast back to that integer.
            same &= np.isfinite(cast)
            same &= cast < 2.0 ** (8 * array.dtype.itemsize - (array.dtype.kind == "i"))
    return cast if same.all() else None


def are_floats(integers: np.ndarray) -> bool:
    """Return whether float64 represents each of these integers. Not collective."""
    return cast_exactly(integers, np.dtype(np.float64)) is not None


def _numbers_exactly(array: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Return objects as numbers, or None; only floats can have missing values."""
    values = array.reshape(-1).tolist()
    present = [value for value in values if value is not None]
    kinds = {"b": (bool, np.bool_), "i": (int, np.integer), "u": (int, np.integer)}
    kind = kinds.get(dtype.kind, (int, float, np.integer, np.floating))
    if dtype.kind not in "biuf" or not all(isinstance(value, kind) for value in present):
        return None
    if dtype.kind != "b" and any(isinstance(value, bool | np.bool_) for value in present):
        return None
    if len(present) < len(values) and dtype.kind != "f":
        return None
    try:
        converted = array.astype(dtype)
    except OverflowError:
        return None
    same = converted.reshape(-1).tolist()
    pairs = zip(same, values, strict=True)
    return converted if all(b is None or a == b or b != b for a, b in pairs) else None


def with_missing(array: np.ndarray) -> np.ndarray:
    """Return integers, of which some are None, as floats with NaN if these represent all of them.

    Not collective. Otherwise return the array of objects.
    """
    floats = cast_exactly(array, np.dtype(np.float64))
    return array if floats is None else floats


def join(arrays: Sequence[np.ndarray], *, name: str) -> np.ndarray:
    """Return arrays one after another, as one, with the same values.

    Not collective. If all arrays have categories, the result has their union.

    Parameters
    ----------
    arrays
        At least one, with a row per element.
    name
        Name of the column, for the message.

    Raises
    ------
    ConfigError
        If no common type can represent all values.
    """
    dtype = arrays[0].dtype
    kinds = [array.dtype for array in arrays if len(array)] or [dtype]
    if any(array.dtype != dtype for array in arrays):
        # The type of an empty array does not matter.
        arrays = [array for array in arrays if len(array)] or arrays[:1]
        dtype = common_type([array.dtype for array in arrays], name)
        arrays = [_in_type(array, dtype, name) for array in arrays]
    joined: np.ndarray = np.concatenate(arrays)
    if any(kind.metadata for kind in kinds):
        categories = union([categories_of(kind) for kind in kinds])
        joined = joined.view(with_categories(joined.dtype, categories))
    return joined


def common_type(dtypes: Sequence[np.dtype], name: str) -> np.dtype:
    """Return the common type of the values of a column.

    Not collective.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if any(dtype.hasobject for dtype in dtypes):
        return np.dtype(object)
    kinds = {_FAMILY.get(dtype.kind, dtype.kind) for dtype in dtypes}
    if len(kinds) > 1:
        raise _unlike(name, dtypes)
    common = np.result_type(*dtypes)
    if common.kind == "f" and all(dtype.kind in "iu" for dtype in dtypes):
        # NumPy's common type of int64 and uint64 is float64, which would round; most values fit
        # int64.
        return np.dtype(np.int64)
    return common


_FAMILY = {"b": "number", "i": "number", "u": "number", "f": "number", "c": "number"}
_FAMILY |= {"U": "text", "S": "bytes"}


def _in_type(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    if array.dtype.kind in "US" and dtype.kind == array.dtype.kind:
        return array
    found = cast_exactly(array, dtype)
    if found is None:
        raise ConfigError(
            f"column {name!r} has type {array.dtype} in some batches and needs {dtype} for others, "
            f"which cannot represent all its values (float64 rounds integers beyond 2**53). Give "
            f"the column one type in all batches."
        )
    return found


def _unlike(name: str, dtypes: Sequence[np.dtype]) -> ConfigError:
    return ConfigError(
        f"column {name!r} has incompatible types in different batches: "
        f"{', '.join(dict.fromkeys(map(str, dtypes)))}. Give it one type in all batches."
    )


def array_of(values: Sequence[Any]) -> np.ndarray:
    """Return a list as an array with an element for each value, without changing a value.

    Not collective. NumPy would convert numbers to text in mixed columns, and round large integers
    among fractions; there the result is an array of objects.

    Examples
    --------
    >>> array_of(["a", 1]), array_of([1, 2.5])
    (array(['a', 1], dtype=object), array([1. , 2.5]))
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind in "US":
            objects = np.asarray(values, dtype=object)
            kind = set(map(type, objects.reshape(-1)))
            return as_in_batches(array) if kind == {bytes} else objects
        is_large = array.dtype.kind == "f" and array.size and np.nanmax(np.abs(array)) >= EXACT
        if is_large:
            objects = np.asarray(values, dtype=object)
            return array if cast_exactly(objects, array.dtype) is not None else objects
    except ValueError:
        # Rows of different lengths are not an array, but still a value per row.
        array = np.empty(len(values), dtype=object)
        array[:] = values
    return as_in_batches(array)


def values_of(array: np.ndarray) -> list[Any]:
    """Return the rows of a column as Python's values if there is such a type, else as NumPy's.

    Not collective.

    Examples
    --------
    >>> values_of(np.array([1, 2])), values_of(np.array(["2026-01-02"], "datetime64[D]"))
    ([1, 2], [datetime.date(2026, 1, 2)])
    """
    if array.ndim > 1:
        return list(array)
    values: list[Any] = array.tolist()
    # NumPy returns nanoseconds, and years outside of Python's calendar, as integers.
    has_numbers = array.dtype.kind in "Mm" and any(isinstance(value, int) for value in values)
    return list(array) if has_numbers else values


def to_arrow_array(array: np.ndarray) -> Any:
    """Return a column of one dimension as an Arrow array.

    Not collective. Arrow treats pandas' times among objects as Python's and truncates them to
    microseconds; if a time has nanoseconds, this returns an array of nanoseconds.

    Raises
    ------
    pyarrow.ArrowException
        If Arrow has no type for the values.
    ConfigError
        If one time has nanoseconds, and another is beyond the range of nanoseconds.
    """
    import pyarrow

    made = pyarrow.array(array, from_pandas=array.dtype == object)
    if array.dtype != object or (finer := _with_nanoseconds(made.type)) == made.type:
        return made
    if not any(map(_has_nanoseconds, array)):
        return made
    try:
        return pyarrow.array(array, finer, from_pandas=True)
    except (OverflowError, pyarrow.ArrowInvalid) as error:
        raise ConfigError(
            f"some times have nanoseconds, but not all fit into {finer}: {error}. Round them to "
            f"microseconds."
        ) from error


def _with_nanoseconds(kind: Any) -> Any:
    """Return an Arrow type with nanoseconds in place of microseconds, also when nested."""
    import pyarrow

    if pyarrow.types.is_timestamp(kind) and kind.unit == "us":
        return pyarrow.timestamp("ns", kind.tz)
    if pyarrow.types.is_duration(kind) and kind.unit == "us":
        return pyarrow.duration("ns")
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(_with_nanoseconds(kind.value_type))
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([(f.name, _with_nanoseconds(f.type)) for f in kind.fields])
    return kind


def _has_nanoseconds(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_nanoseconds, value.values()))
    if isinstance(value, (list, tuple, np.ndarray)):
        return any(map(_has_nanoseconds, value))
    # Attributes of pandas.Timedelta and pandas.Timestamp; those of NaT are NaN.
    parts = (getattr(value, name, 0) for name in ("nanoseconds", "nanosecond"))
    return any(isinstance(part, int) and part != 0 for part in parts)


def check_not_cast(name: str, array: np.ndarray, made: Any) -> None:
    """Check that Arrow has not cast objects of several kinds to the kind of the first one.

    Not collective. Times with and without a zone are different kinds, and so are dates and times.

    Parameters
    ----------
    name
        Name of the column.
    made
        The type that Arrow has chosen.

    Raises
    ------
    ConfigError
        If it has; the message names the kinds.
    """
    import pyarrow

    casts = pyarrow.types.is_temporal(made) or pyarrow.types.is_binary(made)
    if array.dtype != object or not casts:
        return
    kinds = {_kind_of(value) for value in array.tolist() if value is not None and value == value}
    if len(kinds) > 1:
        raise ConfigError(
            f"column {name!r} holds {' and '.join(sorted(kinds))}, and Arrow would make all of "
            f"them {made}. Give all its values one type."
        )


def _kind_of(value: Any) -> str:
    known = (datetime, date, timedelta, bytes, str)
    kind = next((kind for kind in known if isinstance(value, kind)), type(value))
    has_zone = isinstance(value, datetime) and value.tzinfo is not None
    return f"{kind.__name__} with a time zone" if has_zone else kind.__name__
