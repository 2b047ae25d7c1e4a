from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpctrain.archive import pack_files, unpack_files
from hpctrain.errors import CheckpointError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint"
    (directory / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        # Zeros: they look like the end of an archive.
        (directory / name).write_bytes(bytes(2048))
    return directory


def test_bytes_that_were_cut_anywhere_are_refused(directory: Path, tmp_path: Path):
    packed = pack_files(directory, leave_out=())
    unpack_files(packed, tmp_path / "whole")
    assert sorted(os.listdir(tmp_path / "whole")) == ["a", "b", "sub"]
    end = len(packed.rstrip(b"\0"))
    for length in range(0, end, 256):
        target = tmp_path / f"cut-{length}"
        with pytest.raises(CheckpointError, match=f"given {length} bytes that are not"):
            unpack_files(packed[:length], target)
        assert not target.exists()


@pytest.mark.parametrize("blocks", [2, 20])
def test_what_another_program_has_packed_is_read(directory: Path, tmp_path: Path, blocks: int):
    command = ["tar", "-C", str(directory), f"--blocking-factor={blocks}", "-cf", "-", "a", "b"]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    unpack_files(packed, tmp_path / "target")
    assert sorted(os.listdir(tmp_path / "target")) == ["a", "b"]


def test_links_are_packed_as_what_they_lead_to(directory: Path, tmp_path: Path):
    (tmp_path / "outside").write_bytes(b"weights")
    (directory / "absolute").symlink_to(tmp_path / "outside")
    (directory / "sub/above").symlink_to("../../outside")
    unpack_files(pack_files(directory, leave_out=()), tmp_path / "target")
    for name in ("absolute", "sub/above"):
        assert not (tmp_path / "target" / name).is_symlink()
        assert (tmp_path / "target" / name).read_bytes() == b"weights"
