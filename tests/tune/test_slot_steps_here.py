"""Steps of slots whose srun is a script that starts what it is given on this machine."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import timeouts
from hpctrain.errors import ConfigError
from hpctrain.execute.slot_step import SlotStep, SlotStepError
from hpctrain.plan.argv import slice_srun_args
from hpctrain.tune import local_runner, slot_steps
from hpctrain.tune.allocation_runner import AllocationRunner
from hpctrain.tune.slot_steps import SlotSteps
from hpctrain.tune.trial import Trial
from tests.plans import SETTINGS, make_plan

# Its options, and not those of the command.
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.fixture(autouse=True)
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script, for this test."""
    path = tmp_path / "bin" / "srun"
    path.parent.mkdir()
    path.write_text(SRUN)
    path.chmod(0o700)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(slot_steps, "find_own_hydra", lambda: True)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return path


@pytest.fixture
def steps() -> Iterator[SlotSteps]:
    with closing(SlotSteps()) as made:
        yield made


def make_submission(*nodes: str) -> Any:
    """Return a trial of one worker on each of some nodes."""
    plan = make_plan("allocation", num_workers=len(nodes), cpus=1)
    placement = replace(plan.placement, nodes=nodes)
    plan = replace(plan, placement=placement, srun_args=slice_srun_args(placement))
    return SimpleNamespace(plan=plan)


def take(steps: SlotSteps, trial: str, *nodes: str) -> str:
    nodes = nodes or ("node1",)
    return steps.take(trial, make_submission(*nodes), nodes=nodes)


def test_the_step_of_a_trial_is_that_of_the_next_one(steps: SlotSteps) -> None:
    ticket = take(steps, "a")
    assert ticket
    steps.give_back("a", is_clean=True)
    assert take(steps, "b") == ticket
    assert take(steps, "c") not in ("", ticket)


def test_a_trial_on_two_nodes_begins_in_the_free_step_of_each(steps: SlotSteps) -> None:
    of_first = take(steps, "a", "node1")
    steps.give_back("a", is_clean=True)
    of_both = take(steps, "b", "node2", "node1").split(",")
    assert of_both[1] == of_first
    assert take(steps, "c", "node2") not in ("", *of_both)
    for trial in "bc":
        steps.give_back(trial, is_clean=True)
    # That of the node of which one has ended is a new one.
    os.kill(int(of_first.split(":")[0]), signal.SIGKILL)
    steps._steps[0]._process.wait(60)
    again = take(steps, "d", "node1", "node2").split(",")
    assert again[0] != of_first
    assert take(steps, "e", "node2") in of_both


def test_a_trial_on_more_nodes_than_the_tuner_has_sruns_for_has_none(
    steps: SlotSteps, capfd: pytest.CaptureFixture[str]
) -> None:
    assert take(steps, "a", *map("node{}".format, range(33))) == ""
    assert "steps of their own: a trial is on more than 32 nodes" in capfd.readouterr().err


def test_a_trial_that_cannot_begin_leaves_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step would have the CPUs of the slot, and the next one wait for them."""
    taken = []

    def refuse(submission: object, *, slot: Any, policy: str) -> None:
        taken.append(int(slot.fork_server.split(":")[0]))
        raise ConfigError("the directory is not trusted")

    monkeypatch.setattr(local_runner, "submit_prepared", refuse)
    runner = AllocationRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    with closing(runner):
        with pytest.raises(ConfigError, match="trusted"):
            runner._begin(Trial(trial_id="trial_00000", config={}), make_submission("node1"))
        (step,) = runner._slot_steps._ending
        assert step._process.pid == taken[0]
        # It ends by itself.
        step._process.wait(60)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOENT])
def test_a_step_that_cannot_be_started_costs_no_trial(
    steps: SlotSteps,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    number: int,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", fail)
    assert take(steps, "a") == ""
    assert os.strerror(number) in capfd.readouterr().err


@pytest.mark.parametrize("noise", ["echo of the prolog", "printf '0: '", "printf '\\377\\n'"])
def test_what_is_printed_before_the_step_says_how_it_is_reached_costs_nothing(
    steps: SlotSteps, srun: Path, noise: str
) -> None:
    srun.write_text(SRUN.replace("exec", f"{noise}\nexec"))
    sock, _ = SlotStep(take(steps, "a"), SETTINGS).connect()
    sock.close()


@pytest.mark.parametrize("mode", ["LABELIO", "STDERRMODE", "STDINMODE", "STDOUTMODE"])
def test_the_input_and_output_of_a_step_are_what_the_tuner_gives_it(
    steps: SlotSteps, srun: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv(f"SLURM_{mode}", "none")
    srun.write_text(SRUN.replace("exec", f"test -z $SLURM_{mode} || exit 1\nexec"))
    sock, _ = SlotStep(take(steps, "a"), SETTINGS).connect()
    sock.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_step_does_not_start_where_its_working_directory_is_not_seen(
    steps: SlotSteps, srun: Path, tmp_path: Path
) -> None:
    """Slurm would start it in /tmp."""
    # The command is: sh -c SCRIPT DIRECTORY PYTHON ...
    srun.write_text(SRUN.replace("$@", f'$1" -c "$3" /gone "$5" > "{tmp_path}/said'))
    with pytest.raises(SlotStepError, match="it has ended"):
        SlotStep(take(steps, "a"), SETTINGS).connect()
    said = (tmp_path / "said").read_text()
    assert "cannot be used: it does not see the working directory /gone" in said


def test_a_node_on_which_three_trials_could_not_begin_in_a_step_has_none_any_more(
    steps: SlotSteps, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        ticket = take(steps, f"bad{number}", "node1")
        os.kill(int(ticket.split(":")[0]), signal.SIGKILL)
        steps._steps[-1]._process.wait(60)
        steps.give_back(f"bad{number}", is_clean=True)
        assert take(steps, f"good{number}", "node2")
        steps.give_back(f"good{number}", is_clean=True)
    assert take(steps, "c", "node1") == ""
    assert "3 in a row could not begin in that of their slot on node1" in capfd.readouterr().err
    assert take(steps, "d", "node2")


def test_a_step_that_is_over_leaves_no_descriptor(steps: SlotSteps) -> None:
    # What is opened once in a process.
    take(steps, "a")
    steps.give_back("a", is_clean=False)
    before = open_files()
    for trial in "bc":
        take(steps, trial)
        steps.give_back(trial, is_clean=False)
    assert open_files() == before


def test_steps_that_do_not_end_are_cancelled_together(
    steps: SlotSteps, srun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is lost has many: one after another they would take minutes."""
    srun.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(timeouts, "SLOT_STEP_END_S", 0.01)
    cancelled = []

    def cancel(job_id: str, *marks: str, timeout_s: float) -> None:
        cancelled.append((job_id, marks))

    monkeypatch.setattr(slot_steps, "end_marked_steps", cancel)
    tickets = [take(steps, trial) for trial in "abc"]
    for trial in "abc":
        steps.give_back(trial, is_clean=trial != "b")
    steps.close()
    pids, _, marks = zip(*(ticket.split(":") for ticket in tickets), strict=True)
    try:
        ((job_id, of_steps),) = cancelled
        assert (job_id, sorted(of_steps)) == ("7", sorted(marks))
    finally:
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)


def test_a_kernel_without_pidfds_has_no_steps_of_slots(
    steps: SlotSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", fail)
    assert take(steps, "a") == ""
