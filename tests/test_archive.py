from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

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


@pytest.fixture(params=["with filters", "without filters"])
def any_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tarfile be that of a Python before 3.10.12 or 3.11.4, too."""
    if request.param == "without filters":
        real = tarfile.TarFile.extractall

        def extractall(self: tarfile.TarFile, path: Any) -> None:
            real(self, path)

        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)


@pytest.mark.usefixtures("any_python")
def test_content_and_modes_come_back(directory: Path, tmp_path: Path):
    (directory / "sub/c").write_bytes(b"weights")
    (directory / "a").chmod(0o755)
    (directory / "empty").mkdir()
    target = tmp_path / "target"
    unpack_files(pack_files(directory, leave_out=()), target)
    assert (target / "sub/c").read_bytes() == b"weights"
    assert os.listdir(target / "empty") == []
    assert os.access(target / "a", os.X_OK)
    assert not os.access(target / "b", os.X_OK)


@pytest.mark.usefixtures("any_python")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside", tarfile.REGTYPE),
        ("sub/../../outside", tarfile.REGTYPE),
        ("outside", tarfile.FIFOTYPE),
    ],
)
def test_what_would_lie_outside_or_is_no_file_is_refused(tmp_path: Path, name: str, kind: bytes):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:") as archive:
        member = tarfile.TarInfo(name)
        member.type = kind
        archive.addfile(member)
    with pytest.raises(CheckpointError, match="outside"):
        unpack_files(packed.getvalue(), tmp_path / "target")
    assert not (tmp_path / "outside").exists()


@pytest.mark.usefixtures("any_python")
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
