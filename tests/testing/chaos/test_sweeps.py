"""The harness finds what is wrong with a sweep: it would be worth nothing if every one passed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.launch.claim import claimed
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.chaos.fault import Entry, Point
from hpctrain.testing.chaos.injector import role_of
from hpctrain.testing.chaos.leftovers import Surroundings, surround
from hpctrain.testing.chaos.sweep_decisions import wrong_decisions, wrong_lineages
from hpctrain.testing.chaos.sweep_kinds import MOST_AT_ONCE, SWEEP_KINDS, count_attempts, kill_all
from hpctrain.testing.chaos.sweep_outcome import best_trial, broken_rules, has_ended
from hpctrain.testing.chaos.sweep_suite import SWEEP, begin_suite
from hpctrain.testing.chaos.trial import Script, Trial
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.schedulers import ASHAScheduler, TrialScheduler

MODEL = Path(__file__).parents[2] / "chaos" / "sweep_model.py"
TRIALS = 2

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a sweep of two trials with ASHA, which stops one of them."""
    folder = tmp_path_factory.mktemp("sweep")
    args = ("--pause=0", "--at-once=1")
    begin_suite(folder, model=MODEL, scheduler="asha", num_trials=TRIALS, args=args)
    return folder / "undisturbed"


@pytest.fixture
def place(undisturbed: Path, tmp_path: Path) -> Path:
    """Copy of it that may be damaged."""
    return Path(shutil.copytree(undisturbed, tmp_path / "copy"))


def rules(
    place: Path, trace: tuple[Entry, ...] = (), damaged: Mapping[str, float] | None = None
) -> str:
    root = place / "storage" / SWEEP
    return "\n".join(broken_rules(root, trace, num_trials=TRIALS, damaged=damaged or {}))


def edit(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def test_a_sweep_that_nobody_disturbs_breaks_no_rule(place: Path) -> None:
    assert rules(place) == ""
    root = place / "storage" / SWEEP
    assert has_ended(root)
    assert best_trial(root, "loss") == "trial_00001"


def test_a_second_end_a_lost_trial_and_a_double_one_are_found(place: Path) -> None:
    ledger = place / "storage" / SWEEP / "tune.jsonl"
    edit(ledger, lambda lines: [*lines[:-1], lines[-2], lines[-1]])
    assert "trial_00001 is TERMINATED, and has 2 ends" in rules(place)
    edit(ledger, lambda lines: [line for line in lines if line.get("trial") != "trial_00001"])
    assert "its trials are trial_00000, not 2" in rules(place)
    added = '"trial-added"'
    text = ledger.read_text()
    (line,) = [line for line in text.splitlines() if added in line]
    ledger.write_text(f"{line}\n{text}")
    assert "trial_00000 was added 2 times" in rules(place)
    edit(ledger, lambda lines: lines[:-1])
    assert "it has not ended once, and at last" in rules(place)
    assert not has_ended(ledger.parent)


def test_a_hole_and_a_repetition_among_reports_are_found(place: Path) -> None:
    metrics = place / "storage" / SWEEP / "trial_00001" / "metrics.jsonl"
    before = metrics.read_text()
    edit(metrics, lambda lines: [lines[0], *lines[2:]])
    assert "trial_00001: its reports have a hole before report" in rules(place)
    metrics.write_text(before)
    edit(metrics, lambda lines: [lines[0], *lines])
    assert "trial_00001: attempt 1 began after report 0 and made reports [1, 1, 2" in rules(place)


def test_a_damaged_checkpoint_and_what_is_left_are_found(place: Path) -> None:
    root = place / "storage" / SWEEP
    run = root / "trial_00001"
    content = next(
        path
        for path in sorted((run / "checkpoints").rglob("*"))
        if path.is_file() and path.suffix != ".json"
    )
    whole = content.read_bytes()
    content.write_bytes(b"?" + whole[1:])
    assert "trial_00001: " in rules(place)
    assert "checkpoints/" in rules(place)
    # Of a trial that goes on after the damage, and of one that does not.
    key = str(content.parent.relative_to(place / "storage"))
    assert "checkpoints/" in rules(place, damaged={key: 1.0})
    assert rules(place, damaged={key: time.time()}) == ""
    content.write_bytes(whole)
    found = rules(place, damaged={key: time.time()})
    assert (
        found == f"trial_00001: checkpoint {content.parent.name} was damaged, and that is not found"
    )
    (run / ".plan.json.0123456789abcdef").touch()
    with claimed(RunPaths(root)):
        found = rules(place)
    assert "left behind: trial_00001/.plan.json.0123456789abcdef" in found
    assert f"{SWEEP} is still claimed" in found


def test_two_executors_of_a_trial_at_the_same_time_are_found(place: Path) -> None:
    def wrote(pid: int, time: float, trial: str = "trial_00000") -> Entry:
        point = Point(role=f"{trial}/executor", op="write", path="x", moment="before")
        return Entry(time=time, point=point, pid=pid)

    one_after_the_other = (wrote(1, 1.0), wrote(1, 2.0), wrote(2, 3.0), wrote(3, 1.5, "trial_1"))
    assert rules(place, one_after_the_other) == ""
    found = rules(place, (*one_after_the_other, wrote(1, 3.5)))
    assert found == "trial_00000/executor: two were at work, for 0.50 s"


def make_asha() -> TrialScheduler:
    return ASHAScheduler(metric="loss", mode="min", max_t=9, grace_period=2, reduction_factor=2)


def test_decisions_that_the_scheduler_does_not_make_are_found(place: Path) -> None:
    root, notes = place / "storage" / SWEEP, place / "notes.jsonl"
    assert wrong(notes, root) == []

    def go_on(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**line, "decision": line["decision"] and "CONTINUE"} for line in lines]

    edit(notes, go_on)
    assert "where the scheduler decides STOP" in wrong(notes, root)[0]
    edit(notes, lambda lines: [line for line in lines if line["call"] == "add"])
    assert "and no decision says so" in wrong(notes, root)[0]


def test_what_an_earlier_process_let_go_on_need_not_stop(place: Path) -> None:
    root, notes = place / "storage" / SWEEP, place / "notes.jsonl"
    edit(
        SweepPaths(root=root).events,
        lambda events: [event for event in events if event["event"] != "trial-stop"],
    )

    def note(pid: int, trial: str, loss: float, decision: str) -> dict[str, Any]:
        metrics = {"training_iteration": 2, "loss": loss}
        return {**call(pid, trial), "call": "result", "metrics": metrics, "decision": decision}

    def call(pid: int, trial: str) -> dict[str, Any]:
        return {"pid": pid, "call": "add", "trial": trial, "metrics": None, "decision": None}

    restored = [
        *(call(2, "trial_00000"), call(2, "trial_00001")),
        note(2, "trial_00001", 0.1, "CONTINUE"),
        note(2, "trial_00000", 5.0, "STOP"),
    ]
    edit(notes, lambda lines: restored)
    assert wrong(notes, root) == ["trial_00000 went on after report 2, and was to stop"]
    first = [call(1, "trial_00000"), note(1, "trial_00000", 5.0, "CONTINUE")]
    edit(notes, lambda lines: [*first, *restored])
    assert wrong(notes, root) == []


def wrong(notes: Path, root: Path) -> list[str]:
    return list(wrong_decisions(notes, root, make_asha))


def test_a_report_that_follows_from_no_other_is_found(place: Path) -> None:
    root = place / "storage" / SWEEP

    def advance(w: float, lr: float) -> float:
        return w - lr * 2 * (w - 3)

    assert list(wrong_lineages(root, advance)) == []

    def change(key: str, value: float) -> None:
        def once(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
            last = {**lines[-1], "metrics": {**lines[-1]["metrics"], key: value}}
            return [*lines[:-1], last]

        edit(root / "trial_00000" / "metrics.jsonl", once)

    change("w", 17.0)
    assert "follows from no other" in next(iter(wrong_lineages(root, advance)))
    change("lr", 17.0)
    assert any("has lr=17.0, and not 0.01" in what for what in wrong_lineages(root, advance))


def test_processes_of_trials_have_the_names_of_these() -> None:
    run, script = "/x/storage/sweep/trial_00003", "/x/train.py"
    background = ["python", "-u", "-m", "hpctrain.launch.background", run, "digest", "has-slot"]
    rank = ["python", "-m", "hpctrain.worker.main", run, "1", "1", "socket"]
    assert role_of(background, {}, script) == "trial_00003/executor"
    assert role_of(rank, {"PMI_RANK": "2"}, script) == "trial_00003/rank-2"
    assert role_of(["python", script, "--x"], {}, script) == "driver"
    assert role_of(["/usr/bin/salloc", "python", script], {}, script) == "allocation"
    assert role_of([], {}, script) == "other"
    rank[3] = "/x/storage/run"
    assert role_of(rank, {"PMI_RANK": "2"}, script) == "rank-2"


def test_a_loss_of_power_leaves_the_salloc_that_gives_the_nodes_back() -> None:
    """Otherwise the next start of the script waits for them, up to their time limit."""
    killed = []

    @dataclass(frozen=True)
    class Process:
        role: str

        def send(self, number: signal.Signals) -> None:
            assert number is signal.SIGKILL
            killed.append(self.role)

    roles = ["allocation", "trial_00001/rank-0", "driver", "trial_00001/executor", "agent"]
    scene: Any = SimpleNamespace(processes=lambda: [Process(role) for role in roles])
    assert list(kill_all(scene)) == [None]
    assert killed == ["driver", "trial_00001/rank-0", "trial_00001/executor", "agent"]


def test_the_end_of_a_tuner_costs_attempts_where_its_allocation_ends_with_it() -> None:
    for kind in ("kill-tuner", "kill-tuner-writing"):
        assert count_attempts(kind, in_allocation=False) == 0
        assert count_attempts(kind, in_allocation=True) == MOST_AT_ONCE
    assert count_attempts("kill-rank", in_allocation=True) == 1


def test_a_temporary_checkpoint_is_left_behind_unless_its_node_was_without_power(
    tmp_path: Path,
) -> None:
    """Nodes of a virtual cluster share a /tmp, and boot with a PID namespace of any number."""
    own = f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    of_two = ClusterSpec(num_nodes=2)
    spaces = {"head": 20, "node1": 21, "node2": 22}
    tmp = tmp_path / "tmp"
    tmp.mkdir()

    class Cluster:
        spec = of_two
        node_names = spec.node_names
        layout = SimpleNamespace(node_identity=lambda node: tmp_path / node)

        def run_on(self, node: str, argv: Sequence[str]) -> SimpleNamespace:
            return SimpleNamespace(stdout=f"{spaces[node]}\n" if argv[0] == "stat" else "")

    cluster: Any = Cluster()

    def boot(node: str, *, at: float) -> None:
        (tmp_path / node).touch()
        os.utime(tmp_path / node, (at, at))

    def make(name: str, *, at: float) -> str:
        (tmp / name).mkdir()
        os.utime(tmp / name, (at, at))
        return name

    def checkpoint(space: str, *, at: float, pid: int = 5) -> str:
        return make(f"hpctrain-checkpoint-{pid}-0123456789abcdef.{space}-x", at=at)

    for node in spaces:
        boot(node, at=100.0)
    surroundings = Surroundings(tmp=tmp, shm=None, cluster=cluster)
    make("of-the-user", at=110.0)
    of_node1, of_node2, of_nobody = (checkpoint(f"{n:x}", at=110.0) for n in (21, 22, 99))
    others = [checkpoint(own, at=50.0), make("hpctrain-else", at=110.0)]

    def left() -> list[str]:
        return sorted(Path(path).name for path in surroundings.leftovers([]))

    assert left() == sorted([of_node1, of_node2, of_nobody, *others])
    spaces["node2"] = 23
    boot("node2", at=120.0)
    assert left() == sorted([of_node1, *others])
    spaces["node2"] = 22
    assert left() == sorted([of_node1, *others])
    of_new_boot = checkpoint("16", at=130.0, pid=6)
    assert left() == sorted([of_node1, of_new_boot, *others])


@pytest.mark.slurm
def test_the_next_start_on_all_nodes_removes_what_the_dead_have_left(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "answered" / "0").mkdir(parents=True)
    point = Point(role="trial_00000/rank-0", op="report", path="report-1", moment="before")
    trial = Trial(
        tmp_path,
        script=Script(path=MODEL, sweep=SWEEP),
        cluster=virtual_slurm,
        faults=[SWEEP_KINDS["kill-all"].at(point)],
    )
    assert trial._was_all_killed()
    with surround(cluster=virtual_slurm) as surroundings:
        program = (
            "import os, sys; from hpctrain.temporary_checkpoint import temporary_prefix; "
            "os.mkdir(f'{sys.argv[1]}/{temporary_prefix()}x')"
        )
        for node in virtual_slurm.node_names:
            virtual_slurm.run_on(node, [sys.executable, "-c", program, str(surroundings.tmp)])
        assert len(surroundings.leftovers([])) == len(virtual_slurm.node_names)
        trial._start_on_all_nodes(surroundings)
        assert surroundings.leftovers([]) == []
    assert trial._troubles == []


def test_a_trial_that_fails_is_a_difference(tmp_path: Path) -> None:
    """Its tuner has nothing to mend: rank 0 is killed more often than the trial may fail."""
    args = ("--pause=0", "--at-once=1")
    experiment = begin_suite(tmp_path, model=MODEL, scheduler="fifo", num_trials=1, args=args)
    kill = SWEEP_KINDS["kill-rank"]
    point = Point(role="trial_00000/rank-0", op="report", path="report-1", moment="before")
    comparison = experiment.disturb([kill.at(point)] * 4)
    assert any("trial_00000 failed" in problem for problem in comparison.problems), (
        comparison.explain()
    )
    assert os.path.exists(comparison.result.log)
