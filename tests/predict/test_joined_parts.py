"""Parts joined into one file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain.data import read_hdf5
from hpctrain.data.identity import files_of
from hpctrain.predict.joined_parts import join_parts
from hpctrain.predict.part_files import Hdf5Part, PartFile


def written_parts(
    output: Path, part_type: type[PartFile], count: int, column: str = "p"
) -> list[Path]:
    parts = output.with_name(output.name + ".parts")
    parts.mkdir()
    paths = [parts / f"part-{number:06d}{part_type.suffix}" for number in range(count)]
    for number, path in enumerate(paths):
        part = part_type(path, rows=2)
        part.append({column: np.arange(2.0) + 2 * number + 1})
        part.complete()
    return paths


@pytest.mark.parametrize(
    ("name", "column"),
    [("plain.h5", "rise_%"), ("top50%.h5", "p"), ("top50%%.h5", "rate%%x"), ("a%b.h5", "rate%b")],
)
def test_names_with_a_percent_sign_lead_to_the_rows(name: str, column: str, tmp_path: Path):
    output = tmp_path / name
    parts = written_parts(output, Hdf5Part, 2, column)
    join_parts(Hdf5Part, parts, output)
    with h5py.File(output) as file:
        assert file[column][:].tolist() == [1.0, 2.0, 3.0, 4.0]
    dataset = read_hdf5(output)
    assert dataset.to_numpy()[column].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert files_of(dataset) == [str(output), *map(str, parts)]
    parts[0].unlink()
    with pytest.raises(Exception, match=r"part-000000.h5, which does not exist"):
        read_hdf5(output)
