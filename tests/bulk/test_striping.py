"""Lustre cannot be had here: a program called ``lfs`` and the filesystem's number stand for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpctrain.bulk import block_writer, direct, striping
from hpctrain.bulk.copy import Copier
from hpctrain.bulk.striping import (
    LUSTRE,
    STRIPE_SHARE_BYTES,
    filesystem_type,
    prepare_stripes,
    stripe_count,
)

PLAIN = "stripe_count:  1 stripe_size:   1048576 pattern:       0 stripe_offset: -1"
GROWING = """  lcm_layout_gen:    0
  lcm_mirror_count:  1
  lcm_entry_count:   3
    lcme_id:             N/A
      stripe_count:  1       stripe_size:   1048576       pattern:       raid0"""
BY_THE_USER = "stripe_count:  16 stripe_size:   1048576 pattern:       0 stripe_offset: -1"
LFS = """#!/bin/sh
echo "$@" >> {log}
case $1 in
  getstripe) echo "$3"; echo "{layout}";;
  setstripe) {setstripe};;
esac
"""


@pytest.fixture
def lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is taken for one on Lustre."""
    directory = tmp_path / "lustre"
    directory.mkdir()
    monkeypatch.setattr(striping, "filesystem_type", lambda _: LUSTRE)
    return directory


def install_lfs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    layout: str = PLAIN,
    setstripe: str = 'echo striped > "$4"',
) -> Path:
    """Put a program in the way of ``lfs``; return what it is called with, line by line."""
    log, program = tmp_path / "log", tmp_path / "bin" / "lfs"
    program.parent.mkdir()
    program.write_text(LFS.format(log=log, layout=layout, setstripe=setstripe))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    log.touch()
    return log


@pytest.mark.parametrize(
    ("gib", "count"), [(0, 1), (4, 1), (5, 2), (16, 4), (30, 8), (32, 8), (840, 8)]
)
def test_a_file_has_a_stripe_for_each_4_gib_and_8_at_most(gib: int, count: int):
    assert stripe_count(gib * 2**30) == count


def test_the_kind_of_a_filesystem_is_what_stat_says(tmp_path: Path):
    for path in (tmp_path, Path("/dev/shm"), Path("/proc")):
        said = subprocess.run(["stat", "-f", "-c", "%t", path], capture_output=True, check=True)
        assert filesystem_type(path) == int(said.stdout, 16)
    assert filesystem_type(tmp_path / "not there") == 0


def test_a_large_file_is_striped_before_it_is_written(
    tmp_path: Path, lustre: Path, monkeypatch: pytest.MonkeyPatch
):
    log = install_lfs(tmp_path, monkeypatch)
    (lustre / "state").write_text("of an attempt that was killed")
    prepare_stripes(lustre / "state", 3 * STRIPE_SHARE_BYTES)
    assert log.read_text().splitlines() == [
        f"getstripe -d {lustre}",
        f"setstripe -c 3 {lustre / '.state.stripes'}",
    ]
    assert (lustre / "state").read_text() == "striped\n"
    # The name was never free, so that no other rank could take it.
    assert [path.name for path in lustre.iterdir()] == ["state"]


def test_a_copy_asks_for_stripes_and_keeps_the_file_that_has_them(
    tmp_path: Path, lustre: Path, monkeypatch: pytest.MonkeyPatch
):
    log = install_lfs(tmp_path, monkeypatch)
    monkeypatch.setattr(striping, "STRIPE_SHARE_BYTES", 2**20)
    (tmp_path / "source").write_bytes(b"x" * 3 * 2**20)
    inode = None
    open_new = direct.open_new

    def watched(path: Path, size: int) -> int:
        nonlocal inode
        descriptor = open_new(path, size)
        inode = (log.read_text().splitlines()[-1], path.stat().st_ino)
        return descriptor

    monkeypatch.setattr(block_writer, "open_new", watched)
    Copier().copy(tmp_path / "source", lustre / "target")
    assert (lustre / "target").read_bytes() == b"x" * 3 * 2**20
    assert inode == (
        f"setstripe -c 3 {lustre / '.target.stripes'}",
        (lustre / "target").stat().st_ino,
    )


@pytest.mark.parametrize("layout", [GROWING, BY_THE_USER])
def test_what_the_site_or_the_user_said_is_left_alone(
    tmp_path: Path, lustre: Path, monkeypatch: pytest.MonkeyPatch, layout: str
):
    log = install_lfs(tmp_path, monkeypatch, layout=layout)
    prepare_stripes(lustre / "state", 3 * STRIPE_SHARE_BYTES)
    assert log.read_text().splitlines() == [f"getstripe -d {lustre}"]
    assert not (lustre / "state").exists()


def test_small_files_and_other_filesystems_cost_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = install_lfs(tmp_path, monkeypatch)
    prepare_stripes(tmp_path / "state", 3 * STRIPE_SHARE_BYTES)
    monkeypatch.setattr(striping, "filesystem_type", lambda _: LUSTRE)
    prepare_stripes(tmp_path / "state", STRIPE_SHARE_BYTES)
    assert log.read_text() == ""


@pytest.mark.parametrize("setstripe", ["exit 1", "sleep 5"])
def test_a_file_that_cannot_be_striped_is_written_all_the_same(
    tmp_path: Path, lustre: Path, monkeypatch: pytest.MonkeyPatch, setstripe: str
):
    install_lfs(tmp_path, monkeypatch, setstripe=setstripe)
    monkeypatch.setattr(striping, "STRIPE_SHARE_BYTES", 2**20)
    monkeypatch.setattr("hpctrain.timeouts.STRIPING_S", 0.2)
    (tmp_path / "source").write_bytes(b"x" * 3 * 2**20)
    Copier().copy(tmp_path / "source", lustre / "target")
    assert (lustre / "target").read_bytes() == b"x" * 3 * 2**20


def test_without_lfs_a_file_is_written_as_it_comes(
    tmp_path: Path, lustre: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    prepare_stripes(lustre / "state", 3 * STRIPE_SHARE_BYTES)
    assert list(lustre.iterdir()) == []
