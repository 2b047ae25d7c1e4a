"""Output that cannot be written: on a full disk, and into a pipe that is closed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_report.fabricated import write_run

VERBS = (
    ["--help"],
    ["--version"],
    ["list", "."],
    ["list", ".", "--json"],
    ["template", "--nodes", "1"],
)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_full_disk_behind_stdout_is_named_once(
    verb: list[str], unbuffered: str, tmp_path: Path
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hpctrain.cli", *verb],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    said = "hpctrain: standard output cannot be used: No space left on device.\n"
    assert (done.stderr, done.returncode) == (said, 4)


def test_a_closed_pipe_ends_it_without_a_word(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hpctrain.cli", "--help"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.stderr, done.returncode) == ("", 1)


def test_a_process_without_stdout_runs_its_verb(tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m hpctrain.cli --version >&-"
    done = subprocess.run(
        ["bash", "-c", command], stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60
    )
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("verb", [["list", "."], ["status", "a run"], ["history", "a run"]])
def test_a_verb_of_a_daemon_has_no_streams_at_all(verb: list[str], tmp_path: Path) -> None:
    write_run(tmp_path / "a run", num_restarts=1, num_nodes=1)
    argv = shlex.join([sys.executable, "-m", "hpctrain.cli", *verb])
    done = subprocess.run(
        ["sh", "-c", f"exec {argv} >&- 2>&- <&-"], cwd=tmp_path, timeout=60, check=False
    )
    assert done.returncode == 0
