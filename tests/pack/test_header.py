"""What is read of a pack, and the files that are none."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import ConfigError
from hpctrain.pack.header import DIGEST, MANIFEST, TRAILER_BYTES, read_pack


def test_a_pack_says_what_it_is(packed: tuple[Path, dict[str, Any]]) -> None:
    path, printed = packed
    pack, manifest = read_pack(path)
    assert pack.path == printed["path"] == str(path)
    assert pack.sha256 == printed["sha256"]
    assert pack.total_bytes == printed["bytes"] == path.stat().st_size
    assert pack.prefix == printed["prefix"]
    assert any(name.startswith("mpi4py-") for name in manifest["distributions"])


def test_any_tar_can_list_it_and_its_digest_is_the_last_member(
    packed: tuple[Path, dict[str, Any]],
) -> None:
    with tarfile.open(packed[0]) as archive:
        names = archive.getnames()
        assert (names[0], names[-1]) == (MANIFEST, DIGEST)
        content = archive.extractfile(DIGEST)
        assert content is not None
        assert content.read().decode() == packed[1]["sha256"]


def test_nothing_of_the_machine_or_the_user_is_in_it(packed: tuple[Path, dict[str, Any]]) -> None:
    with tarfile.open(packed[0]) as archive:
        for member in archive:
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            assert not member.name.startswith("/")
            assert ".." not in Path(member.name).parts


@pytest.mark.parametrize(
    ("kept", "why"), [(-1, "is cut off"), (-TRAILER_BYTES, "is cut off"), (100, "or damaged")]
)
def test_a_file_that_is_cut_off_is_refused(
    packed: tuple[Path, dict[str, Any]], tmp_path: Path, kept: int, why: str
) -> None:
    path = tmp_path / "short.tar"
    path.write_bytes(packed[0].read_bytes()[:kept])
    with pytest.raises(ConfigError, match=f"short.tar .*{why}.* hpctrain pack"):
        read_pack(path)


@pytest.mark.parametrize("content", [b"", b"no archive", bytes(4096)])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.tar"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"other.tar is not a packed environment"):
        read_pack(path)


def test_another_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "file")
    with pytest.raises(ConfigError, match=r"other.tar is not a packed environment"):
        read_pack(path)


def test_a_file_that_is_not_there_or_would_block_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/none.tar cannot be read: No such file"):
        read_pack(tmp_path / "none.tar")
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(ConfigError, match=r"/pipe.tar cannot be read: it is a FIFO"):
        read_pack(tmp_path / "pipe.tar")


def test_an_image_whose_size_no_file_has_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "environment.squashfs"
    path.write_bytes(b"hsqs" + b"\xff" * 5000)
    with pytest.raises(ConfigError, match="is not a packed environment, or damaged"):
        read_pack(path)
