"""Files of parts whose number of rows is known at their end only."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pandas
import pytest
from pyarrow import parquet

from hpctrain.data import read_csv, read_hdf5, read_numpy, read_parquet
from hpctrain.predict import part_files
from hpctrain.predict.parquet_types import unify_parts
from hpctrain.predict.part_files import (
    NOTHING,
    CsvPart,
    Hdf5Part,
    NumpyPart,
    ParquetPart,
    PartFile,
)

READERS = {
    CsvPart: read_csv,
    Hdf5Part: read_hdf5,
    NumpyPart: read_numpy,
    ParquetPart: read_parquet,
}


@pytest.mark.parametrize("part_type", READERS)
def test_rows_are_written_before_their_number_is_known(
    part_type: type[PartFile], tmp_path: Path
) -> None:
    path = tmp_path / f"part-000000{part_type.suffix}"
    part = part_type(path, rows=None)
    batches = np.random.default_rng(0).normal(size=(9, 65_536, 2))
    for batch in batches:
        part.append({"x": batch})
    (beside,) = tmp_path.iterdir()
    assert beside != path
    assert beside.stat().st_size > 4 * 2**20
    part.append({"x": batches[0, :5]})
    part.complete()
    found = np.stack(list(READERS[part_type](path).to_numpy().values()), axis=-1)
    expected = np.concatenate([*batches, batches[0, :5]])
    assert np.array_equal(found.reshape(expected.shape), expected)


def test_a_parquet_part_takes_the_type_of_its_first_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_files, "_BUFFER_BYTES", 1)
    path = tmp_path / "part-000000.parquet"
    part = ParquetPart(path, rows=6, kinds={"x": "nothing"})
    for values in ([None, None], [True, None], [None, None]):
        part.append({"x": np.array(values, object), "y": np.arange(2)})
    part.complete()
    found = parquet.read_table(path)
    assert found.column("x").to_pylist() == [None, None, True, None, None, None]
    assert found.column("y").to_pylist() == [0, 1] * 3
    assert list(tmp_path.iterdir()) == [path]


def test_a_part_stays_whole_if_there_is_no_space_for_its_types(tmp_path: Path) -> None:
    nothing, settled = tmp_path / "part-000000.parquet", tmp_path / "part-000001.parquet"
    for path, values in ((nothing, [None, None]), (settled, [True, None])):
        part = ParquetPart(path, rows=2, kinds={"x": NOTHING})
        part.append({"x": np.array(values, object)})
        part.complete()
    before, copy = nothing.read_bytes(), tmp_path / "copy.parquet"
    copy.write_bytes(before)
    unify_parts([copy, settled])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Room for the rows, but not for the end of the file, without which it cannot be read.
    resource.setrlimit(resource.RLIMIT_FSIZE, (copy.stat().st_size - 1, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            unify_parts([nothing, settled])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert nothing.read_bytes() == before
    unify_parts([nothing, settled])
    assert nothing.read_bytes() == copy.read_bytes()


def test_a_csv_part_may_have_values_that_pandas_calls_missing(tmp_path: Path) -> None:
    values = np.array([pandas.NA, pandas.NA], object)
    CsvPart.check_values({"x": values})
    part = CsvPart(tmp_path / "part-000000.csv", rows=2)
    part.append({"x": values, "y": np.arange(2)})
    part.complete()
    assert pandas.read_csv(tmp_path / "part-000000.csv")["x"].isna().all()


@pytest.mark.parametrize("part_type", READERS)
def test_a_small_part_of_an_unknown_number_of_rows_is_complete(
    part_type: type[PartFile], tmp_path: Path
) -> None:
    path = tmp_path / f"part-000000{part_type.suffix}"
    part = part_type(path, rows=None)
    part.append({"x": np.arange(3)})
    part.append({"x": np.arange(2)})
    part.complete()
    (found,) = READERS[part_type](path).to_numpy().values()
    assert found.tolist() == [0, 1, 2, 0, 1]
