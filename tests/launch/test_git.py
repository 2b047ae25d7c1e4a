"""Git that hangs, is missing, fails, or prints too much."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from pathlib import Path
from typing import NoReturn

import pytest

from hpctrain.launch.git import Git, GitError
from hpctrain.timeouts import Timeout

SOON = Timeout(30.0, "soon", "git", "it fails")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git of ours, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    path = folder / "git"
    path.touch(0o755)
    path.chmod(0o755)
    return path


def test_a_git_that_hangs_is_ended_with_its_children_and_the_limit_is_named(
    program: Path, tmp_path: Path
) -> None:
    program.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {tmp_path}/child\nwait\n")
    git = Git(tmp_path, Timeout(0.5, "soon", "git", "it fails"))
    with pytest.raises(GitError, match=r"git status did not answer within 0.5 s \(timeout soon\)"):
        git.run("status")
    child = int((tmp_path / "child").read_text())
    # It is gone, or waits for whoever collects orphans.
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True
    ).stdout
    assert state.strip()[:1] in ("", "Z")
    # The limit is of all commands together.
    with pytest.raises(GitError, match="did not answer"):
        git.run("status")


def test_what_happens_between_commands_takes_none_of_their_time(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than git gets when no time is left.
    program.write_text("#!/bin/sh\nsleep 0.2\necho answer\n")
    git = Git(tmp_path, SOON)
    git.run("status")
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 1000)
    assert git.run("status") == b"answer\n"


def test_the_end_of_git_is_not_looked_for_again_and_again(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(seconds: float) -> NoReturn:
        raise AssertionError(f"slept for {seconds} s")

    program.write_text("#!/bin/sh\nsleep 0.2\necho answer\n")
    monkeypatch.setattr(time, "sleep", refuse)
    assert Git(tmp_path, SOON).run("status") == b"answer\n"


def test_a_kernel_without_descriptors_of_processes_is_no_error(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> NoReturn:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    program.write_text("#!/bin/sh\necho answer\n")
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert Git(tmp_path, SOON).run("status") == b"answer\n"


def test_no_git_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="git cannot be started: No such file"):
        Git(tmp_path, SOON).run("status")


def test_a_failure_is_explained_by_the_line_of_git(program: Path, tmp_path: Path) -> None:
    program.write_text("#!/bin/sh\necho 'hint: x' >&2\necho 'fatal: no such thing' >&2\nexit 128\n")
    with pytest.raises(GitError, match=r"^git status: no such thing$"):
        Git(tmp_path, SOON).run("status")
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(GitError, match=r"^git status: exit status 3$"):
        Git(tmp_path, SOON).run("status")


def test_an_answer_has_a_limit(program: Path, tmp_path: Path) -> None:
    program.write_text("#!/bin/sh\nprintf 12345\n")
    git = Git(tmp_path, SOON)
    assert git.run("status", most_bytes=5) == b"12345"
    with pytest.raises(GitError, match="prints more than"):
        git.run("status", most_bytes=4)


def test_variables_of_a_hook_lead_to_no_other_repository(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/elsewhere/index")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "0")
    program.write_text("#!/bin/sh\nenv\n")
    variables = Git(tmp_path, SOON).run("status").decode().splitlines()
    assert not [line for line in variables if line.startswith(("GIT_DIR=", "GIT_INDEX_FILE="))]
    # It may name directories that are safe.
    assert "GIT_CONFIG_COUNT=0" in variables
    assert "GIT_OPTIONAL_LOCKS=0" in variables


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_repository_of_another_user_is_refused_by_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True, timeout=30)
    marker = tmp_path / "ran"
    with open(tmp_path / ".git" / "config", "a") as file:
        file.write(f"[core]\n\tfsmonitor = touch {marker}\n")
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.lchown(path, 12345, 12345)
    with pytest.raises(GitError, match="git status: detected dubious ownership"):
        Git(tmp_path, SOON).run("status")
    assert not marker.exists()
