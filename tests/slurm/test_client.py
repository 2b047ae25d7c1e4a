"""What Slurm's commands say, and whether it may be over soon."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.errors import LaunchError
from hpctrain.slurm import client, pmi
from hpctrain.slurm.client import Asked, is_passing, is_refused_for_now, run_slurm
from hpctrain.slurm.pmi import ask_for_pmi_types, offered_pmi_types


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Unable to create step for job 1: Memory required by task is not available", True),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
        ("Job step creation temporarily disabled, retrying", True),
        ("unrecognized option '--no-such-option'", False),
        ("Invalid job id specified", False),
    ],
)
def test_some_refusals_of_slurm_pass(said: str, expected: bool) -> None:
    assert is_passing(f"srun: error: {said}") is expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Unable to create step for job 1: Memory required by task is not available", True),
        ("Unable to create step for job 1: Unable to contact slurm controller", True),
        ("Unable to create step for job 1: Socket timed out on send/recv operation", True),
        ("Unable to create step for job 1: Invalid Trackable RESource (TRES) specification", False),
        ("Unable to create step for job 1: Job/step already completing or completed", False),
        ("node1: task 0: Exited with exit code 7", False),
    ],
)
def test_some_refusals_of_a_step_are_worth_asking_again(said: str, expected: bool) -> None:
    assert is_refused_for_now(f"srun: error: {said}") is expected


FAKE_SRUN = """#!/bin/sh
echo asked >> {asked}
printf 'MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n'
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where an srun that knows two types of PMI writes that it was asked."""
    srun = tmp_path / "srun"
    srun.write_text(FAKE_SRUN.format(asked=tmp_path / "asked"))
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    # Another test of this process may have asked, and not needed the answer.
    monkeypatch.setattr(pmi, "_asked", [])
    offered_pmi_types.cache_clear()
    yield tmp_path / "asked"
    offered_pmi_types.cache_clear()


@pytest.mark.parametrize("ahead", [True, False])
def test_srun_is_asked_once_for_its_types_of_pmi(asked: Path, ahead: bool) -> None:
    if ahead:
        ask_for_pmi_types()
    assert offered_pmi_types() == {"none", "pmi2"}
    ask_for_pmi_types()
    assert offered_pmi_types() == {"none", "pmi2"}
    assert asked.read_text() == "asked\n"


def test_an_srun_that_is_not_there_is_told_to_who_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pmi, "_asked", [])
    offered_pmi_types.cache_clear()
    ask_for_pmi_types()
    with pytest.raises(LaunchError, match=r"srun is not on PATH.*SlurmConfig\(mpi='pmi2'\)"):
        offered_pmi_types()


def test_a_command_runs_while_its_answer_is_not_waited_for(tmp_path: Path) -> None:
    # It ends once a file is there that is made after it was asked.
    go = tmp_path / "go"
    asked = Asked(["sh", "-c", f"until test -e {go}; do sleep 0.01; done; echo done"])
    go.touch()
    assert asked.answer(timeout_s=60).stdout == "done\n"


def test_an_answer_that_nobody_needs_is_not_waited_for() -> None:
    asked = Asked(["sleep", "600"])
    asked.close()
    assert asked._process.returncode == -signal.SIGKILL


def test_what_a_command_prints_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_LONGEST_ANSWER", 3 * 2**20)
    long = run_slurm(["head", "-c", str(3 * 2**20), "/dev/zero"], timeout_s=60)
    assert len(long.stdout) == 3 * 2**20
    with pytest.raises(LaunchError, match=r"'yes' prints more than 3 MiB") as raised:
        run_slurm(["yes"], timeout_s=60)
    assert not raised.value.transient


def test_a_command_that_keeps_its_answer_open_is_not_waited_for() -> None:
    for script in ("exec sleep 600", "exec sleep 600 >&- 2>&-"):
        with pytest.raises(LaunchError, match="did not answer within") as raised:
            run_slurm(["sh", "-c", script], timeout_s=0.2)
        assert raised.value.transient


def test_what_is_not_text_is_shown_with_escapes() -> None:
    answer = run_slurm(["printf", r"J\374rgen"], timeout_s=60)
    assert answer.stdout == r"J\xfcrgen"


def test_defaults_of_a_person_do_not_reach_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ["SLURM_CLUSTERS", "SLURM_CONF"]
    dropped = ["SACCT_LOCAL", "SCANCEL_STATE", "SCONTROL_ALL", "SINFO_SORT", "SQUEUE_USERS"]
    for name in kept + dropped:
        monkeypatch.setenv(name, "given")
    names = [line.partition("=")[0] for line in run_slurm(["env"], timeout_s=60).stdout.split("\n")]
    assert set(kept) <= set(names)
    assert set(dropped).isdisjoint(names)


def test_a_command_that_asks_gets_no_answer() -> None:
    assert run_slurm(["cat"], timeout_s=60).stdout == ""
