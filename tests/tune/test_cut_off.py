"""Trials whose node or job ends before them, played by a fake runner."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpctrain import RunStoppedError
from hpctrain.errors import DamagedFileError
from hpctrain.execute.failure_policy import MAX_ATTEMPTS_WITHOUT_PROGRESS
from hpctrain.tune.interruptions import Interruptions
from hpctrain.tune.ledger import SweepPaths, read_record
from hpctrain.tune.node_slots import NodeShare, NodeSlots
from hpctrain.tune.runner import End, Look, Saved
from hpctrain.tune.schedulers import FIFOScheduler, HyperBandScheduler
from hpctrain.tune.slots import Need
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.trial import Origin, Transfer, Trial, TrialState
from tests.tune.test_sweep import FakeRunner, Script, make_sweep, states


class Breaking(FakeRunner):
    """Its nodes break, each once, under the trials that are on them."""

    broken: Mapping[str, str] = {}
    job_ends_for: str = ""
    seen: dict[str, list[str]]

    def start(self, trial: Trial) -> None:
        super().start(trial)
        self.seen.setdefault(trial.trial_id, []).extend(trial.slot.nodes)

    def look(self, trial: Trial) -> Look:
        lost = {node: why for node, why in self.broken.items() if node in trial.slot.nodes}
        if lost or trial.trial_id == self.job_ends_for:
            self.job_ends_for = ""
            del self.at_work[trial.trial_id]
            end = End(failed=bool(lost), was_stopped=not lost, is_cut_off=True, lost_nodes=lost)
            return Look(end=end)
        return super().look(trial)


def make(runner: Breaking, root: Path, *, nodes: int = 3, **options: Any) -> Sweep:
    runner.seen = {}
    slots = NodeSlots({f"n{i}": NodeShare(cpus=1) for i in range(nodes)})
    return make_sweep(runner, root, slots=slots, **options)


def test_a_lost_node_is_left_out_and_its_trial_begins_again_elsewhere(tmp_path: Path) -> None:
    runner = Breaking()
    runner.broken = {"n1": "silent"}
    sweep = make(runner, tmp_path)
    sweep.run()
    assert states(sweep) == 4 * ["TERMINATED"]
    assert runner.seen["trial_00001"][0] == "n1"
    assert "n1" not in [n for nodes in runner.seen.values() for n in nodes[1:]]
    assert sum(nodes.count("n1") for nodes in runner.seen.values()) == 1
    events = [json.loads(line) for line in (tmp_path / "tune.jsonl").read_text().splitlines()]
    (left_out,) = [event for event in events if event["event"] == "node-left-out"]
    assert (left_out["node"], left_out["reason"]) == ("n1", "silent")
    states_of = [trial.state for trial in read_record(SweepPaths(root=tmp_path)).trials.values()]
    assert states_of == [trial.state for trial in sweep.trials.values()]


def test_the_last_trial_begins_again_too(tmp_path: Path) -> None:
    runner = Breaking()
    runner.broken = {"n0": "silent"}
    sweep = make(runner, tmp_path, num_samples=1)
    sweep.run()
    assert states(sweep) == ["TERMINATED"]
    assert runner.seen == {"trial_00000": ["n0", "n1"]}


def test_the_last_trial_is_not_taken_for_ended_when_its_job_ends(tmp_path: Path) -> None:
    runner = Breaking()
    runner.job_ends_for = "trial_00000"
    with pytest.raises(RunStoppedError):
        make(runner, tmp_path, num_samples=1).run()


def test_trials_that_no_node_is_left_for_go_on_in_another_job(tmp_path: Path) -> None:
    runner = Breaking()
    runner.broken = {"n0": "silent", "n1": "silent"}
    sweep = make(runner, tmp_path, nodes=2, num_samples=3)
    with pytest.raises(RunStoppedError) as caught:
        sweep.run()
    assert str(caught.value) == (
        "the sweep stopped because trial_00000 needs 1 worker with 1 CPU each: the 0 nodes of "
        "this allocation (2 more are lost: n0: silent; n1: silent) hold none of them when they are "
        "empty."
    )
    record = read_record(SweepPaths(root=tmp_path))
    assert {trial.state.value for trial in record.trials.values()} == {"PENDING"}
    assert record.ended is None


class Sized(Breaking):
    """Every second trial needs two nodes."""

    def need_of(self, trial: Trial) -> Need:
        workers = 1 + int(trial.trial_id[-1]) % 2
        return Need(cpus=workers, workers=workers, num_nodes=workers)


def test_what_still_fits_on_the_nodes_that_are_left_goes_on(tmp_path: Path) -> None:
    runner = Sized()
    runner.broken = {"n1": "silent"}
    sweep = make(runner, tmp_path, nodes=2, num_samples=4)
    with pytest.raises(RunStoppedError, match="trial_00001 needs 2 workers with 1 CPU each on 2"):
        sweep.run()
    # Those behind it that are not made yet are made by the next job.
    assert states(sweep) == ["TERMINATED", "PENDING"]


class PausesTheFirst(FIFOScheduler):
    """Pauses the first trial, and lets the others go before it."""

    def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Any:
        return self.PAUSE if trial_id == "trial_00000" else self.CONTINUE

    def choose(self, waiting: Sequence[str]) -> str:
        return waiting[-1]


class FirstIsLarge(Breaking):
    """The first trial needs two nodes, one of which breaks under the third trial."""

    def need_of(self, trial: Trial) -> Need:
        workers = 2 if trial.trial_id == "trial_00000" else 1
        return Need(cpus=workers, workers=workers, num_nodes=workers)

    def start(self, trial: Trial) -> None:
        super().start(trial)
        if trial.trial_id == "trial_00002":
            self.broken = {"n1": "silent"}


def test_trials_that_are_not_made_yet_begin_while_a_paused_one_does_not_fit(tmp_path: Path) -> None:
    runner = FirstIsLarge()
    sweep = make(runner, tmp_path, nodes=2, scheduler=PausesTheFirst())
    with pytest.raises(RunStoppedError, match="trial_00000 needs 2 workers"):
        sweep.run()
    assert states(sweep) == ["PAUSED", *3 * ["TERMINATED"]]


def test_a_trial_that_waits_for_one_that_does_not_fit_goes_on_in_another_job(
    tmp_path: Path,
) -> None:
    runner = Sized({"trial_00000": Script(20 * [1.0])})
    runner.broken = {"n1": "silent"}
    scheduler = HyperBandScheduler(metric="m", mode="max", max_t=9)
    sweep = make(runner, tmp_path, nodes=2, num_samples=2, scheduler=scheduler)
    with pytest.raises(RunStoppedError, match="trial_00001 needs 2 workers"):
        sweep.run()
    assert states(sweep) == ["PAUSED", "PENDING"]
    assert runner.started == ["trial_00000", "trial_00001"]


def test_a_last_node_that_cannot_be_used_any_more_fails_no_trial(tmp_path: Path) -> None:
    """Trials have reported before, so that the place was not always wrong."""

    class Full(Breaking):
        def look(self, trial: Trial) -> Look:
            if trial.trial_id < "trial_00002":
                return super().look(trial)
            del self.at_work[trial.trial_id]
            lost = dict.fromkeys(trial.slot.nodes, "/scratch is full")
            end = End(
                failed=True,
                was_stopped=False,
                is_for_all=True,
                is_cut_off=True,
                lost_nodes=lost,
                reason="no node of this job can be used.",
            )
            return Look(end=end)

    sweep = make(Full(), tmp_path, nodes=1, num_samples=5)
    with pytest.raises(RunStoppedError, match="1 more is lost: n0: /scratch is full"):
        sweep.run()
    assert states(sweep) == ["TERMINATED", "TERMINATED", "PENDING"]


def test_the_end_of_the_job_stops_all_trials_so_that_they_go_on_in_another(tmp_path: Path) -> None:
    runner = Breaking({f"trial_0000{i}": Script(hangs=True) for i in range(3)})
    runner.job_ends_for = "trial_00001"
    with pytest.raises(RunStoppedError, match="trial_00001 was stopped for the end of its job"):
        make(runner, tmp_path).run()
    assert not runner.at_work
    record = read_record(SweepPaths(root=tmp_path))
    assert {trial.state.value for trial in record.trials.values()} == {"PENDING"}
    assert record.ended is None


def test_a_notice_of_the_end_of_the_job_stops_all_trials(tmp_path: Path) -> None:
    runner = Breaking({f"trial_0000{i}": Script(hangs=True) for i in range(3)})
    sweep = make(runner, tmp_path)
    sweep._interruptions = Interruptions(
        why_job_ends=lambda: "its time limit ends" if runner.now >= 3 else ""
    )
    with pytest.raises(RunStoppedError, match="the sweep stopped because its time limit ends"):
        sweep.run()
    assert sorted(runner.asked) == ["trial_00000", "trial_00001", "trial_00002"]
    assert set(states(sweep)) == {"PENDING"}


class SavesLittle(FakeRunner):
    """Its trials never end; in each job the second one saves a newer checkpoint."""

    jobs = 0

    def find_saved(self, trial: Trial) -> Saved | None:
        if trial.trial_id != "trial_00001":
            return None
        return Saved(name=str(self.jobs), iteration=self.jobs, seconds=0.0)


class KilledError(Exception):
    """The tuner is killed, and its trials with it."""


def run_in_job(runner: SavesLittle, root: Path, *, how: str) -> Mapping[str, Trial]:
    """Begin a sweep or go on with it in a job of four seconds; return the trials by its ledger."""
    end = runner.now + 4
    runner.jobs += 1
    runner.asked.clear()

    def why(ended: str) -> str:
        if runner.now < end:
            return ""
        if how == "killed":
            runner.at_work.clear()
            raise KilledError
        if how == "Ctrl-C":
            raise KeyboardInterrupt
        return "it is to end" if how == ended else ""

    sweep = make_sweep(runner, root, num_samples=2)
    sweep._interruptions = Interruptions(
        why_job_ends=lambda: why("job end"), why_leave=lambda: why("person")
    )
    paths = SweepPaths(root=root)
    sweep.adopt(read_record(paths).trials, was_in_job=True)
    if how == "killed":
        sweep._interrupt = lambda: None  # type: ignore[method-assign]
    with pytest.raises((RunStoppedError, KilledError, KeyboardInterrupt)):
        sweep.run()
    return read_record(paths).trials


def endless() -> SavesLittle:
    return SavesLittle({f"trial_{number:05d}": Script(hangs=True) for number in range(2)})


@pytest.mark.parametrize("how", ["job end", "killed"])
def test_a_trial_for_which_all_jobs_are_too_short_fails_in_the_end(
    tmp_path: Path, how: str
) -> None:
    runner = endless()
    for _ in range(MAX_ATTEMPTS_WITHOUT_PROGRESS - 1):
        trials = run_in_job(runner, tmp_path, how=how)
        assert not any(trial.state.is_final for trial in trials.values())
    for _ in range(2):
        # That a job was killed is found by the next one.
        first, second = run_in_job(runner, tmp_path, how=how).values()
    assert (first.state, second.without_progress) == (TrialState.ERROR, 0)
    assert not second.state.is_final
    assert first.reason.startswith(
        "its job or its node ended 5 times in a row before it had saved a newer checkpoint: "
    )
    sweep = make_sweep(runner, tmp_path, num_samples=2)
    sweep.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    sweep.retry(sweep.trials["trial_00000"])
    assert sweep.trials["trial_00000"].without_progress == 0
    trials = run_in_job(runner, tmp_path, how="job end")
    assert not trials["trial_00000"].state.is_final


@pytest.mark.parametrize("how", ["person", "Ctrl-C"])
def test_trials_that_a_person_interrupts_go_on_however_often(tmp_path: Path, how: str) -> None:
    runner = endless()
    for _ in range(2 * MAX_ATTEMPTS_WITHOUT_PROGRESS):
        trials = run_in_job(runner, tmp_path, how=how)
        assert {trial.state for trial in trials.values()} == {TrialState.PENDING}


class Unreadable(SavesLittle):
    """Its checkpoints cannot be read."""

    error: Exception

    def find_saved(self, trial: Trial) -> Saved | None:
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError(errno.ESTALE, "Stale file handle", "/scratch"), DamagedFileError("damaged")]
)
def test_checkpoints_that_cannot_be_read_end_no_sweep_and_do_not_count(
    tmp_path: Path, error: Exception
) -> None:
    runner = Unreadable(endless().scripts)
    runner.error = error
    for _ in range(MAX_ATTEMPTS_WITHOUT_PROGRESS + 1):
        trials = run_in_job(runner, tmp_path, how="job end")
        assert {trial.state for trial in trials.values()} == {TrialState.PENDING}
        assert {trial.without_progress for trial in trials.values()} == {0}


def test_the_ledger_says_how_often_a_trial_that_failed_made_no_progress(tmp_path: Path) -> None:
    runner = endless()
    for _ in range(MAX_ATTEMPTS_WITHOUT_PROGRESS):
        first, _ = run_in_job(runner, tmp_path, how="job end").values()
    assert first.state is TrialState.ERROR
    assert first.without_progress == MAX_ATTEMPTS_WITHOUT_PROGRESS


def test_nodes_on_which_a_trial_could_not_begin_do_not_count_against_it(tmp_path: Path) -> None:
    class Lacking(Breaking):
        def look(self, trial: Trial) -> Look:
            if trial.slot.nodes.keys() == {"n5"}:
                return super().look(trial)
            del self.at_work[trial.trial_id]
            lost = dict.fromkeys(trial.slot.nodes, "its /tmp is full")
            end = End(
                failed=True, was_stopped=False, is_cut_off=True, has_run=False, lost_nodes=lost
            )
            return Look(end=end)

    nodes = MAX_ATTEMPTS_WITHOUT_PROGRESS + 1
    sweep = make(Lacking(), tmp_path, nodes=nodes, num_samples=1)
    sweep.run()
    assert states(sweep) == ["TERMINATED"]


def test_runs_that_a_person_stopped_after_their_tuner_had_died_do_not_count(tmp_path: Path) -> None:
    runner = endless()
    for _ in range(MAX_ATTEMPTS_WITHOUT_PROGRESS + 1):
        trials = run_in_job(runner, tmp_path, how="killed")
        runner.asked_by_person = ["trial_00000"]
    assert {trial.state for trial in trials.values()} == {TrialState.RUNNING}
    assert trials["trial_00000"].without_progress == 0


@pytest.mark.parametrize("iteration", [1, 9])
def test_the_checkpoint_of_another_trial_is_no_progress(iteration: int) -> None:
    trial = Trial(trial_id="trial_00000", config={})
    trial.note_job_end(3)
    assert trial.note_job_end(3) == {"without_progress": 1, "saved": 3}
    transfer = Transfer(
        number=1,
        time=0.0,
        donor="trial_00001",
        checkpoint="checkpoint_000000",
        iteration=iteration,
        seconds=0.0,
        config={},
    )
    trial.receive(Origin(transfer=transfer, report=4, attempt=1))
    assert trial.note_job_end(iteration) == {"without_progress": 2, "saved": iteration}
    assert trial.note_job_end(iteration + 1) == {"without_progress": 0, "saved": iteration + 1}
