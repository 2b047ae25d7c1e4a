"""Times of NumPy, pandas and Python as values that can be compared, sorted and looked up."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np

# Range of datetime64[ns], in whole years.
_FIRST, _LAST = np.datetime64("1678", "Y"), np.datetime64("2262", "Y")


def times_of(array: np.ndarray) -> list[Any]:
    """Return the values of an array of times as keys: equal times are equal keys.

    Not collective. A time has different bits in different units, so all become nanoseconds, or
    microseconds if they are beyond the range of nanoseconds.

    Examples
    --------
    >>> days, seconds = np.array(["2024-02-29"], "M8[D]"), np.array(["2024-02-29"], "M8[s]")
    >>> times_of(days) == times_of(seconds) == [np.datetime64("2024-02-29", "ns")]
    True
    """
    kind, reach = array.dtype.kind, (_FIRST, _LAST)
    if kind == "m":
        most = np.timedelta64(2**63 - 1, "ns").astype("m8[D]")
        reach = (-most, most)
    fits = np.isnat(array) | ((array > reach[0]) & (array < reach[1]))
    if fits.all():
        return list(array.astype(f"{kind}8[ns]"))
    near = iter(array[fits].astype(f"{kind}8[ns]"))
    far = iter(array[~fits].astype(f"{kind}8[us]"))
    return [next(near if is_near else far) for is_near in fits.tolist()]


def nanoseconds(value: Any) -> int:
    """Return a time of `times_of` as a number to sort by: NumPy's `<` may overflow.

    Not collective.

    Raises
    ------
    TypeError
        If it is not a time.
    """
    if not isinstance(value, np.datetime64 | np.timedelta64):
        raise TypeError(f"{value!r} is not a time")
    return int(value.astype(np.int64)) * (1 if value.dtype.str.endswith("[ns]") else 1000)


def as_time(value: Any) -> Any:
    """Return a time of NumPy, pandas or Python as `times_of` does; other values unchanged.

    Not collective. A time with a time zone is converted to UTC.
    """
    if isinstance(value, date | timedelta):
        if isinstance(value, datetime) and value.tzinfo is not None:
            value = value.astimezone(timezone.utc).replace(tzinfo=None)
        # pandas' times have nanoseconds.
        unit = "m8[us]" if isinstance(value, timedelta) else "M8[us]"
        value = value.to_numpy() if hasattr(value, "to_numpy") else np.array([value], unit)[0]
    if isinstance(value, np.datetime64 | np.timedelta64):
        return times_of(np.array([value]))[0]
    return value
