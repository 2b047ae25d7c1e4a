"""Values stay what they are: between types, units, libraries and batches."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from hpctrain import ConfigError
from hpctrain.data import from_numpy, from_pandas, types
from hpctrain.data.batch import concatenate
from hpctrain.data.formats import as_column, from_any

Examples = Callable[[Callable[[np.random.Generator], None]], None]

EDGES = [0, 1, -1, 255, 300, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**60 + 1, 2**63 - 1]
NUMBERS = ("b1", "i1", "u1", "i4", "i8", "u8", "f4", "f8", ">i4", ">f8")


def some_integers(rng: np.random.Generator, dtype: str, size: int) -> np.ndarray:
    bounds = np.iinfo(dtype)
    inside = [edge for edge in EDGES if bounds.min <= edge <= bounds.max]
    return rng.choice(np.array(inside, dtype), size)


def some_numbers(rng: np.random.Generator) -> np.ndarray:
    dtype, size = str(rng.choice(NUMBERS)), int(rng.integers(0, 5))
    if np.dtype(dtype).kind in "iu":
        return some_integers(rng, dtype, size)
    values = rng.choice([0.0, 1.0, 0.1, 2.0**53 + 2, 1e300, np.nan, -0.5], size)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def python(array: np.ndarray) -> list[Any]:
    """Python's own values, None for what is missing."""
    return [None if value is None or value != value else value for value in array.tolist()]


def test_batches_are_joined_without_another_value(each_example: Examples) -> None:
    def check(rng: np.random.Generator) -> None:
        batches = [some_numbers(rng) for _ in range(rng.integers(1, 4))]
        if rng.random() < 0.2:
            batches.append(np.array(["7", None], object))
        expected = [value for batch in batches for value in python(batch)]
        try:
            joined = concatenate([from_any({"x": batch}) for batch in batches])["x"]
        except ConfigError:
            # There is no NumPy type that has all of them.
            common = np.result_type(*(batch.dtype for batch in batches if len(batch)))
            assert any(python(batch.astype(common)) != python(batch) for batch in batches)
            return
        assert python(joined) == expected

    each_example(check)


def test_integers_are_not_rounded_by_missing_values_of_another_batch() -> None:
    large, missing = np.array([2**60 + 1]), np.array([np.nan])
    with pytest.raises(ConfigError, match="column 'x' has type int64 in some batches"):
        concatenate([{"x": large}, {"x": missing}])
    assert concatenate([{"x": np.array([3])}, {"x": missing}])["x"].dtype == np.float64


@pytest.mark.parametrize(
    "arrays",
    [
        [np.array(["2024-01-01"], "M8[s]"), np.array([1.0])],
        [np.array(["3000-01-01"], "M8[s]"), np.array(["2024-01-01"], "M8[ns]")],
        [np.array([2**63], "u8"), np.array([-1])],
    ],
)
def test_what_has_no_common_type_is_refused(arrays: list[np.ndarray]) -> None:
    with pytest.raises(
        ConfigError, match=r"column 'x' has .*[Gg]ive (it|the column) one type in all batches"
    ):
        concatenate([{"x": array} for array in arrays])


def test_batches_without_rows_have_no_say_in_the_type() -> None:
    joined = concatenate([{"x": np.array([], object)}, {"x": np.array([1, 2])}])["x"]
    assert joined.dtype == np.int64


def test_lists_have_the_values_that_they_have(each_example: Examples) -> None:
    pools: list[list[Any]] = [
        ["a", "1", ""],
        [1, 2**60 + 1, -1],
        [0.5, 2.0],
        [None],
        [b"x"],
        [datetime.date(2024, 2, 29)],
    ]

    def check(rng: np.random.Generator) -> None:
        chosen = rng.choice(len(pools), rng.integers(1, 4))
        pool = [value for at in chosen for value in pools[at]]
        values = [pool[at] for at in rng.integers(len(pool), size=rng.integers(1, 6))]
        array = as_column(values)
        if all(isinstance(value, bytes) for value in values):
            # As NumPy's own bytes of fixed length.
            values = [value.decode() for value in values]
        assert array.tolist() == values
        assert list(map(type, map(_plain, array.tolist()))) == list(map(type, map(_plain, values)))

    each_example(check)


def _plain(value: Any) -> Any:
    # 1 beside 0.5 may be 1.0, which is the same number.
    return float(value) if isinstance(value, (int, float)) and abs(value) <= 2**53 else value


def test_bytes_that_are_no_text_are_refused_by_name() -> None:
    assert from_any({"x": np.array(["é".encode()])})["x"].tolist() == ["é"]
    with pytest.raises(ConfigError, match=r"column 'x': bytes of type \|S1 are not text"):
        from_any({"x": np.array([b"\xff"])})


def test_integers_with_missing_ones_are_those_of_pandas_and_arrow(each_example: Examples) -> None:
    def check(rng: np.random.Generator) -> None:
        dtype = str(rng.choice(["i1", "i4", "i8", "u8"]))
        values = some_integers(rng, dtype, 5).tolist()
        values = [None if rng.random() < 0.3 else value for value in values]
        name = f"{'U' if dtype[0] == 'u' else ''}Int{8 * int(dtype[1])}"
        kind = pa.from_numpy_dtype(np.dtype(dtype))
        array = pa.array(values, kind)
        for column in (
            pd.Series(values, dtype=name),
            pd.Series(values, dtype=pd.ArrowDtype(kind)),
            pd.Series(pd.Categorical(pd.Series(values, dtype=name))),
            array,
            pa.chunked_array([array[:2], array[2:]]),
            array.dictionary_encode(),
        ):
            assert python(as_column(column)) == values
            assert python(from_any({"x": column})["x"]) == values

    each_example(check)


def test_of_pandas_and_arrow_bools_texts_and_times_are_alike() -> None:
    moment = np.datetime64("2024-02-29T12:30", "us").item()
    aware = moment.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    columns = {
        "bool": ([True, None], "boolean", pa.bool_()),
        "text": (["a", None], "string", pa.string()),
        "time": ([moment, None], "datetime64[us]", pa.timestamp("us")),
    }
    for values, name, kind in columns.values():
        for column in (pd.Series(values, dtype=name), pa.array(values, kind)):
            assert python(as_column(column)) == values
    utc = [moment - datetime.timedelta(hours=2)]
    assert as_column(pd.Series([aware])).astype("datetime64[us]").tolist() == utc
    assert as_column(pa.array([aware], pa.timestamp("us", "+02:00"))).tolist() == utc


def test_texts_of_numpy_are_texts_of_python_wherever_they_come_from() -> None:
    rows = from_numpy({"u": np.array(["a", "bc"]), "s": np.array([b"a", b"bc"])})
    assert rows.schema()["u"].dtype == rows.schema()["s"].dtype == object
    mapped = rows.map_batches(lambda batch: {"u": np.where(batch["s"] == "a", "x", "yz")})
    assert [row["u"] for row in mapped.iter_rows()] == ["x", "yz"]
    assert all(type(value) is str for value in rows.to_numpy()["s"])


def test_numbers_of_another_byte_order_are_native_at_once() -> None:
    rows = from_numpy({"x": np.array([1.5, 2.5], ">f8")})
    assert rows.schema()["x"].dtype.isnative
    assert rows.to_arrow().column("x").to_pylist() == [1.5, 2.5]
    assert from_pandas(pd.DataFrame({"x": np.array([1], ">i4")})).to_numpy()["x"].dtype.isnative


def test_an_integer_that_overflows_to_infinity_is_not_that_integer():
    lowest = np.array([-(2**63)])
    assert types.cast_exactly(lowest, np.dtype("f2")) is None
    assert types.cast_exactly(lowest, np.dtype("f4")).tolist() == [-(2.0**63)]
