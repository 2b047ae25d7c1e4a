from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.plan.visibility import (
    EXIT_INVISIBLE,
    checked_argv,
    process_checks,
    run_directory_check,
)

ODD = """a b'c"d$HOME`x`\\n%j"""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A directory whose name means something to a shell."""
    directory = tmp_path / ODD
    directory.mkdir()
    return directory


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env={"SLURMD_NODENAME": "gpu7"}, capture_output=True, text=True, timeout=30
    )


def script(lines: list[str]) -> subprocess.CompletedProcess[str]:
    return run(["/bin/bash", "-c", "\n".join([*lines, "pwd"])])


def test_a_command_starts_in_the_working_directory_with_its_arguments_as_they_are(odd: Path):
    code = "import os, sys; print(os.getcwd(), sys.argv[1:])"
    done = run(checked_argv([sys.executable, "-c", code, ODD, ""], cwd=str(odd)))
    assert done.stdout == f"{odd} {[ODD, '']}\n"
    assert done.returncode == 0


def test_a_node_without_the_working_directory_says_so_and_starts_nothing(odd: Path):
    done = run(checked_argv([sys.executable, "-c", "print(1)"], cwd=f"{odd}/gone"))
    assert done.returncode == EXIT_INVISIBLE
    assert f"gpu7 cannot be used: it does not see the working directory {odd}/gone\n" in (
        done.stdout
    )


def test_a_node_without_the_python_says_so(odd: Path):
    (odd / "python").symlink_to(odd / "gone")
    done = run(checked_argv([f"{odd}/python", "-c", "print(1)"], cwd=str(odd)))
    assert done.returncode == EXIT_INVISIBLE
    assert done.stdout == (
        f"hpctrain: gpu7 cannot be used: it does not see the Python of this run, {odd}/python\n"
    )


def test_a_batch_script_goes_to_the_working_directory(odd: Path):
    (odd / "spec.pkl").touch()
    done = script([run_directory_check(str(odd)), *process_checks(str(odd), sys.executable)])
    assert (done.stdout, done.stderr, done.returncode) == (f"{odd}\n", "", 0)


def test_a_batch_script_names_what_its_node_does_not_see(odd: Path):
    for line, thing in (
        (run_directory_check(str(odd)), f"the run directory {odd}. Choose a RunConfig(storage"),
        (process_checks(f"{odd}/a", "x")[0], f"the working directory {odd}/a. Start the script"),
        (process_checks("/", f"{odd}/b")[1], f"the Python of this run, {odd}/b. The virtual"),
    ):
        done = script([line])
        assert done.returncode == EXIT_INVISIBLE
        assert done.stdout == ""
        assert f"hpctrain: gpu7 does not see {thing}" in done.stderr
