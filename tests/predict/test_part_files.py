"""Files of parts whose number of rows is known at their end only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpctrain.data import read_csv, read_hdf5, read_numpy, read_parquet
from hpctrain.predict.part_files import CsvPart, Hdf5Part, NumpyPart, ParquetPart, PartFile

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
