"""Parts joined into one file."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain import ConfigError
from hpctrain.data import read_hdf5
from hpctrain.data.identity import files_of
from hpctrain.predict.joined_parts import join_parts
from hpctrain.predict.part_files import Hdf5Part, NumpyPart, PartFile


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
    with pytest.raises(ConfigError, match=r"part-000000.h5, which does not exist"):
        read_hdf5(output)


def test_more_arrays_are_joined_than_a_process_may_map(tmp_path: Path):
    output = tmp_path / "p.npy"
    parts = written_parts(output, NumpyPart, 40)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/proc/self/fd")) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    try:
        join_parts(NumpyPart, parts, output)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert np.load(output).tolist() == [float(number) for number in range(1, 81)]


def test_arrays_of_different_shapes_are_not_joined(tmp_path: Path):
    output = tmp_path / "p.npy"
    parts = written_parts(output, NumpyPart, 2)
    np.save(parts[1], np.zeros((2, 3)))
    with pytest.raises(ConfigError, match=r"part-000001.npy has .*they are not of one prediction"):
        join_parts(NumpyPart, parts, output)
    assert not output.exists()
