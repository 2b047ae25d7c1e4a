"""``hpctrain install horovod``: what it needs, what it keeps, and what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpctrain.errors import LaunchError
from hpctrain.horovod import build

BESIDE_PYTHON = Path(sys.executable).parent
TIMEOUT_S = 240


def install(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BESIDE_PYTHON / "hpctrain"), "install", "horovod", *options],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory that is all of PATH beside the interpreter's own programs."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("env", "g++", "make"):
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"no {name} on this machine")
        (directory / name).symlink_to(found)
    return directory


@pytest.mark.parametrize(
    ("missing", "says"), [("g++", "no C.. compiler.*module load gcc"), ("make", "no make on PATH")]
)
def test_a_missing_program_is_named_before_anything_is_built(
    programs: Path, tmp_path: Path, missing: str, says: str
) -> None:
    (programs / missing).unlink()
    cache = tmp_path / "cache"
    done = install(f"--cache={cache}", "--rebuild", PATH=str(programs), CXX="")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.search(says, done.stderr), done.stderr
    assert not cache.exists()


def test_an_old_cmake_is_refused_with_the_package_that_has_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "cmake"
    old.write_text("#!/bin/sh\necho cmake version 3.18.4\n")
    old.chmod(0o755)
    # The interpreter's own programs come first on PATH.
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    target = build.Target(torch="2.13.0", mpi=None, options={})
    with pytest.raises(build.ConfigError, match=r"3\.18.*3\.21 or newer.*hpctrain\[horovod\]"):
        build.check_tools(target)


@pytest.mark.timeout(60)
def test_a_build_that_takes_too_long_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    done = install(f"--cache={tmp_path}", "--timeout=1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "was stopped after 1 s" in done.stderr
    assert "--timeout sets" in done.stderr
    (log,) = tmp_path.glob("*/build.log")
    assert not list(tmp_path.glob("*/*.whl"))
    assert str(log) in done.stdout


def test_a_wheel_that_cannot_be_kept_is_not_built(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = install(f"--cache={tmp_path / 'file'}")
    assert done.returncode == 2
    assert "--cache names another directory" in done.stderr


def test_torch_mpi_and_options_make_another_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpich = build.Target(torch="2.13.0+cpu", mpi="MPICH Version: 5.0.2", options={})
    others = (
        build.Target(torch="2.13.0+cu130", mpi="MPICH Version: 5.0.2", options={}),
        build.Target(torch="2.13.0+cpu", mpi="Open MPI v5.0.11, package: x", options={}),
        build.Target(torch="2.13.0+cpu", mpi=None, options={}),
        build.Target(
            torch="2.13.0+cpu",
            mpi="MPICH Version: 5.0.2",
            options={"HOROVOD_GPU_OPERATIONS": "NCCL"},
        ),
    )
    keys = {target.key for target in (mpich, *others)}
    assert len(keys) == 5
    assert sys.implementation.cache_tag in mpich.key
    assert "torch2.13.0+cpu-mpich-5.0.2" in mpich.key
    (tmp_path / mpich.key).mkdir()
    wheel = tmp_path / mpich.key / f"horovod-{build.VERSION}-cp311-cp311-linux_x86_64.whl"
    wheel.touch()
    assert build.find_wheel(tmp_path, mpich) == wheel
    assert all(build.find_wheel(tmp_path, other) is None for other in others)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.default_cache() == tmp_path / "hpctrain" / "horovod"


def test_a_wheel_that_cannot_be_installed_leaves_the_log_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(LaunchError, match="The first error in the log says why") as failed:
        build.install_wheel(tmp_path / "horovod-0.28.1-py3-none-any.whl")
    (log,) = tmp_path.glob("*.log")
    assert f"Last lines of {log}" in str(failed.value)
    assert log.stat().st_size > 0


def test_what_was_built_before_is_installed_and_says_what_is_in_it() -> None:
    pytest.importorskip("horovod", reason="hpctrain install horovod")
    target = build.find_target(with_mpi=True)
    if build.find_wheel(build.default_cache(), target) is None:
        pytest.skip("the cache has no wheel of this Horovod: hpctrain install horovod")
    done = install()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "built before: " in done.stdout
    assert "with MPI and Gloo, without NCCL" in done.stdout
