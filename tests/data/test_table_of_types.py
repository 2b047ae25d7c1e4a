"""The table of types in the documentation: what is read from which format becomes what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from hpctrain.data import (
    Dataset,
    from_arrow,
    from_pandas,
    read_csv,
    read_hdf5,
    read_numpy,
    read_parquet,
)

LARGE = 2**60 + 1
ZONED = pa.array([0, 10**6], pa.timestamp("us", "+02:00"))
MISSING = "some missing"


def h5(path: Path, values: Any) -> Dataset:
    with h5py.File(path / "a.h5", "w") as file:
        if values.dtype.kind in "Mm":
            values = values.astype(h5py.opaque_dtype(values.dtype))
        dtype = h5py.string_dtype() if values.dtype == object else None
        file.create_dataset("x", data=values, dtype=dtype)
    return read_hdf5(path / "a.h5")


def npz(path: Path, values: Any) -> Dataset:
    np.savez(path / "a.npz", x=values)
    return read_numpy(path / "a.npz")


def table_of(values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.ndim > 1:
        values = pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])
    elif isinstance(values, np.ndarray):
        values = pa.array(values, from_pandas=values.dtype == object)
    return pa.table({"x": values})


def arrow(path: Path, values: Any) -> Dataset:
    return from_arrow(table_of(values))


def pq(path: Path, values: Any) -> Dataset:
    parquet.write_table(table_of(values), path / "a.parquet")
    return read_parquet(path / "a.parquet")


def lines(path: Path, values: Any) -> Dataset:
    table = table_of(values)
    # A second column, since a line of nothing is no row.
    csv.write_csv(table.append_column("k", pa.array([0] * len(table))), path / "a.csv")
    return read_csv(path / "a.csv", columns=["x"])


def frame(path: Path, values: Any) -> Dataset:
    if isinstance(values, pa.Array):
        return from_pandas(pa.table({"x": values}).to_pandas())
    if values.ndim > 1:
        return from_pandas(pd.DataFrame({"x": [*values]}))
    kinds = {int: "Int64", bool: "boolean", str: "string"}
    kind = kinds.get(type(values[0])) if values.dtype == object else None
    return from_pandas(pd.DataFrame({"x": pd.Series(values, dtype=kind)}))


SOURCES: dict[str, Callable[[Path, Any], Dataset]] = {
    "HDF5": h5,
    "Parquet": pq,
    "CSV": lines,
    "``.npz``": npz,
    "pandas": frame,
    "Arrow": arrow,
}

# For each source the type in batches, or "-" if it has no such values.
CELLS: dict[str, tuple[Any, str]] = {
    "bool": (np.array([True, False]), "bool bool bool bool bool bool"),
    "int64": (np.array([LARGE, -1]), "int64 int64 int64 int64 int64 int64"),
    "uint64": (np.array([2**64 - 1, 0], "u8"), "uint64 uint64 uint64 uint64 uint64 uint64"),
    "int8": (np.array([1, -1], "i1"), "int8 int8 int64 int8 int8 int8"),
    "float64": (np.array([0.1, np.nan]), "float64 float64 float64 float64 float64 float64"),
    "float32": (np.array([0.5, 1], "f4"), "float32 float32 float64 float32 float32 float32"),
    "float16": (np.array([0.5, 1], "f2"), "float16 float16 - float16 float16 float16"),
    "complex": (np.array([1j, 2]), "complex128 - - complex128 complex128 -"),
    "other byte order": (np.array([0.5, 1], ">f8"), "float64 - - float64 float64 -"),
    "arrays of numbers": (
        np.arange(4).reshape(2, 2),
        "int64[2] int64[2] - int64[2] int64[2] int64[2]",
    ),
    "text": (np.array(["a", "é"], object), "object object object - object object"),
    "text of fixed length": (np.array([b"a", b"bc"]), "object - - object - -"),
    f"text, {MISSING}": (np.array(["a", None], object), "- object object - object object"),
    f"bool, {MISSING}": (np.array([True, None], object), "- object object - object object"),
    f"integers, {MISSING}": (np.array([1, None], object), "- float64 float64 - float64 float64"),
    f"integers beyond 2**53, {MISSING}": (
        np.array([LARGE, None], object),
        "- object object - object object",
    ),
    "times": (
        np.array(["2024-02-29T12", "NaT"], "M8[us]"),
        "datetime64[us] datetime64[us] datetime64[ns] datetime64[us] datetime64[us] datetime64[us]",
    ),
    "dates": (
        np.array(["2024-02-29", "2024-03-01"], "M8[D]"),
        "datetime64[D] datetime64[D] datetime64[D] datetime64[D] datetime64[s] datetime64[D]",
    ),
    "times of a zone": (ZONED, "- datetime64[us] datetime64[ns] - datetime64[us] datetime64[us]"),
    "durations": (
        np.array([5, 7], "m8[ms]"),
        "timedelta64[ms] timedelta64[ms] - timedelta64[ms] timedelta64[ms] timedelta64[ms]",
    ),
    "categories": (pa.array(["a", "b"]).dictionary_encode(), "- category - - category category"),
}


def values_of(values: Any) -> list[Any]:
    if isinstance(values, pa.Array):
        return [v.replace(tzinfo=None) if hasattr(v, "tzinfo") else v for v in _in_utc(values)]
    return [*(np.char.decode(values) if values.dtype.kind == "S" else values).tolist()]


def _in_utc(values: Any) -> Any:
    is_zoned = pa.types.is_timestamp(values.type)
    return values.cast(pa.timestamp("us", "UTC")).to_pylist() if is_zoned else values.to_pylist()


def table() -> str:
    """The table of the documentation."""
    out = [".. list-table::", "   :header-rows: 1", "", "   * - values"]
    out += [f"     - {source}" for source in SOURCES]
    for name, (_, kinds) in CELLS.items():
        out.append(f"   * - {name}")
        out += [f"     - {'' if kind == '-' else kind}".rstrip() for kind in kinds.split()]
    return "\n".join(out) + "\n"


def test_the_table_in_the_documentation_is_what_is_tested_here() -> None:
    page = Path(__file__).parents[2] / "docs" / "data.rst"
    assert table() in page.read_text(), f"copy this into {page}:\n{table()}"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", CELLS)
def test_each_cell_is_what_it_says(tmp_path: Path, name: str, source: str) -> None:
    values, kinds = CELLS[name]
    expected = dict(zip(SOURCES, kinds.split(), strict=True))[source]
    if expected == "-":
        return
    dataset = SOURCES[source](tmp_path, values)
    found = dataset.to_numpy()["x"]
    assert str(dataset.schema()["x"]) == expected
    assert found.dtype == dataset.schema()["x"].dtype
    if found.dtype.kind in "Mm":
        found = found.astype(f"{found.dtype.kind}8[us]")
        wanted = np.array(values_of(values), found.dtype)
        assert np.array_equal(found, wanted, equal_nan=True)
        return
    for ours, wanted in zip(found.tolist(), values_of(values), strict=True):
        missing = wanted is None or wanted != wanted
        # A text that is missing is an empty one in CSV.
        assert (ours in (None, "") or ours != ours) if missing else ours == wanted
