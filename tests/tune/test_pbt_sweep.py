"""Sweeps with Population Based Training: played by a fake runner, then of real runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError, tune
from hpctrain.tune.ledger import SweepLedger, SweepPaths, put_configs, read_record
from hpctrain.tune.node_slots import NodeShare, NodeSlots
from hpctrain.tune.schedulers import Exploit, PopulationBasedTraining
from hpctrain.tune.slots import Capacity, Need, Slots
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.trial import Transfer, Trial, TrialState
from tests.tune.played import FakeRunner, make_sweep, states
from tests.tune.played_population import (
    LENGTH,
    KilledError,
    KilledLedger,
    Killer,
    PlayedPopulation,
)


def population(
    runner: FakeRunner, root: Path, *, number: int = 6, slots: Any = None, **options: Any
) -> Sweep:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        metric="m",
        mode="max",
        hyperparam_mutations={"lr": tune.uniform(0, 1)},
        **{"perturbation_interval": 2, **options},
    )
    space = {"lr": tune.uniform(0, 1)}
    scheduler.check_sweep(space, None)
    return make_sweep(
        runner, root, num_samples=number, space=space, scheduler=scheduler, slots=slots
    )


def events(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "tune.jsonl").read_text().splitlines()]


def check_lineages(sweep: Sweep, runner: PlayedPopulation) -> None:
    for name, trial in sweep.trials.items():
        state = runner.saved[name]
        assert len(state) == LENGTH, "each is trained as long as the others"
        assert state[-1][0] != name or state[-1][1] == trial.config["lr"]


_NODES = {name: NodeShare(cpus=8, gpus=1, mem_bytes=16) for name in ("a", "b")}


@pytest.mark.parametrize(
    ("slots", "need"),
    [
        (Slots(Capacity(cpus=32, gpus=("0", "1"))), Need(cpus=4, gpus=1)),
        (Slots(Capacity(cpus=32, mem_bytes=10)), Need(cpus=1, mem_bytes=4)),
        (Slots(Capacity(cpus=9)), Need(cpus=4)),
        (NodeSlots(_NODES), Need(cpus=1, gpus=1)),
        (NodeSlots(_NODES), Need(cpus=1, mem_bytes=10)),
        (NodeSlots(_NODES), Need(cpus=10, workers=2)),
    ],
    ids=["gpus", "memory", "cpus", "nodes-gpus", "nodes-memory", "nodes-cpus"],
)
def test_trials_take_turns_whatever_it_is_that_is_full(
    slots: Any, need: Need, tmp_path: Path
) -> None:
    runner = PlayedPopulation(need=need)
    sweep = population(runner, tmp_path, number=4, slots=slots)
    sweep.run()
    assert states(sweep) == 4 * ["TERMINATED"]
    check_lineages(sweep, runner)
    kinds = [event["event"] for event in events(tmp_path)]
    assert "trial-pause" in kinds, "also those that do not go on as another one"
    assert "trial-perturbed" in kinds
    begun = [e["trial"] for e in events(tmp_path) if e["event"] == "trial-started"]
    assert sorted(begun[:4]) == list(sweep.trials), "no one goes on before all have begun"


@pytest.mark.parametrize("synch", [False, True])
@pytest.mark.parametrize("capacity", [1, 3, 6])
def test_the_worst_go_on_from_the_best_whatever_fits_at_the_same_time(
    synch: bool, capacity: int, tmp_path: Path
) -> None:
    runner = PlayedPopulation(capacity=capacity)
    sweep = population(runner, tmp_path, synch=synch)
    sweep.run()
    assert states(sweep) == 6 * ["TERMINATED"]
    check_lineages(sweep, runner)
    kinds = [event["event"] for event in events(tmp_path)]
    assert kinds.count("trial-cloned") > 1
    assert runner.most_at_work == capacity
    mixed = [name for name in sweep.trials if {who for who, _ in runner.saved[name]} != {name}]
    assert mixed, "some have steps of others in their state"
    for event in events(tmp_path):
        if event["event"] == "trial-perturbed":
            lineage = runner.old[event["donor"], event["checkpoint"]]
            assert len(lineage) == event["iteration"]
    begun = [trial.config for trial in read_record(SweepPaths(root=tmp_path)).trials.values()]
    assert begun == [trial.config for trial in sweep.trials.values()]


def test_a_population_that_is_killed_at_any_moment_goes_on_to_its_end(
    each_example: Callable[[Callable[[Any], None]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = {"in a transfer": 0}
    # The tuner dies, and not the machine.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    def check(rng: np.random.Generator) -> None:
        root = tmp_path / str(rng.integers(2**60))
        root.mkdir()
        killer = Killer()
        runner = PlayedPopulation(capacity=int(rng.integers(1, 5)), killer=killer)
        options = {"number": 4, "synch": bool(rng.random() < 0.4)}
        for _ in range(2):
            killer.moments = int(rng.integers(1, 50))
            sweep = population(runner, root, **options)
            sweep._trials._ledger = KilledLedger(paths=SweepPaths(root=root), killer=killer)
            sweep._interrupt = lambda: None  # type: ignore[method-assign]
            record = read_record(SweepPaths(root=root))
            put_configs(SweepPaths(root=root), record)
            try:
                sweep.adopt(record.trials)
                sweep.run()
            except KilledError:
                pass
            trials = read_record(SweepPaths(root=root)).trials.values()
            seen["in a transfer"] += any(trial.transfer is not None for trial in trials)
            for name in list(runner.at_work):
                if rng.random() < 0.5:
                    del runner.at_work[name], runner.loaded[name]
        killer.moments = -1
        sweep = population(runner, root, **options)
        sweep.adopt(read_record(SweepPaths(root=root)).trials)
        sweep.run()
        assert states(sweep) == 4 * ["TERMINATED"]
        check_lineages(sweep, runner)
        record = read_record(SweepPaths(root=root))
        assert [t.config for t in record.trials.values()] == [
            t.config for t in sweep.trials.values()
        ]

    each_example(check)
    assert seen["in a transfer"]


def _until_perturbed(root: Path, runner: PlayedPopulation) -> Trial:
    """Run a population until the tuner dies with a transfer before it."""
    killer = runner.killer
    sweep = population(runner, root, number=4)
    sweep._interrupt = lambda: None  # type: ignore[method-assign]
    order = sweep._transfers.order

    def die(exploit: Any) -> None:
        order(exploit)
        killer.moments = 1

    sweep._transfers.order = die  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        sweep.run()
    killer.moments = -1
    record = read_record(SweepPaths(root=root))
    (trial,) = [trial for trial in record.trials.values() if trial.transfer is not None]
    return trial


def test_a_checkpoint_that_is_gone_after_a_restore_is_replaced_by_a_newer_one(
    tmp_path: Path,
) -> None:
    runner = PlayedPopulation(capacity=4)
    trial = _until_perturbed(tmp_path, runner)
    transfer = trial.transfer
    assert transfer is not None
    runner.gone.add((transfer.donor, transfer.checkpoint))
    sweep = population(runner, tmp_path, number=4)
    sweep.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    sweep.run()
    first = next(o for o in sweep.trials[trial.trial_id].origins)
    assert first.transfer.donor == transfer.donor
    assert first.transfer.checkpoint != transfer.checkpoint
    assert first.transfer.config == transfer.config
    check_lineages(sweep, runner)


def test_two_trials_do_not_wait_for_each_others_checkpoints(tmp_path: Path) -> None:
    runner = PlayedPopulation(capacity=4)
    trial = _until_perturbed(tmp_path, runner)
    assert trial.transfer is not None
    sweep = population(runner, tmp_path, number=4)
    sweep.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    donor = sweep.trials[trial.transfer.donor]
    sweep._transfers.order(
        Exploit(trial_id=donor.trial_id, donor=trial.trial_id, config={"lr": 0.5})
    )
    assert donor.transfer is None
    sweep.run()
    check_lineages(sweep, runner)


def test_a_trial_whose_other_has_no_checkpoint_any_more_fails_alone(tmp_path: Path) -> None:
    runner = PlayedPopulation(capacity=4)
    trial = _until_perturbed(tmp_path, runner)
    transfer = trial.transfer
    assert transfer is not None
    del runner.saved[transfer.donor]
    runner.gone |= {key for key in runner.old if key[0] == transfer.donor}
    runner.has_saved = lambda trial: True  # type: ignore[method-assign]
    sweep = population(runner, tmp_path, number=4, quantile_fraction=0)
    sweep.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    sweep.run()
    assert sweep.trials[trial.trial_id].state is TrialState.ERROR
    assert "deleted" in sweep.trials[trial.trial_id].reason
    assert states(sweep).count("TERMINATED") == 3


@pytest.mark.parametrize("capacity", [1, 4])
def test_trials_that_save_nothing_end_the_sweep_with_what_to_do(
    capacity: int, tmp_path: Path
) -> None:
    runner = PlayedPopulation(capacity=capacity, saves_each=0, length=40)
    sweep = population(runner, tmp_path, number=4)
    with pytest.raises(ConfigError, match=r"\d\d reports without a checkpoint.*get_checkpoint"):
        sweep.run()
    assert not runner.at_work


@pytest.mark.parametrize("synch", [False, True])
@pytest.mark.parametrize("capacity", [1, 4])
def test_trials_that_save_less_often_than_they_are_compared_go_on(
    synch: bool, capacity: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = PlayedPopulation(capacity=capacity, saves_each=5, length=40)
    sweep = population(runner, tmp_path, number=4, perturbation_interval=4, synch=synch)
    sweep.run()
    assert states(sweep) == 4 * ["TERMINATED"]
    assert all(len(state) == 40 for state in runner.saved.values())
    kinds = [event["event"] for event in events(tmp_path)]
    assert "trial-cloned" in kinds, "once there are checkpoints to go on from"
    # Of those that yield no slot, it may be that none is missed.
    is_missed = synch or capacity == 1
    assert capsys.readouterr().err.count("4 reports without a checkpoint") == is_missed


def test_a_budget_of_time_ends_those_that_are_paused_too(tmp_path: Path) -> None:
    runner = PlayedPopulation(capacity=1)
    sweep = population(runner, tmp_path, number=3)
    sweep._rules = type(sweep._rules)(time_budget_s=5)
    sweep.run()
    assert set(states(sweep)) <= {"TERMINATED", "PENDING"}
    assert any("time_budget_s=5" in trial.reason for trial in sweep.trials.values())
    again = population(runner, tmp_path, number=3)
    again.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    assert not [t for t in again.trials.values() if t.state is TrialState.PAUSED]


def test_ctrl_c_leaves_a_population_that_goes_on(tmp_path: Path) -> None:
    runner = PlayedPopulation(capacity=2, interrupt_at=6)
    sweep = population(runner, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        sweep.run()
    assert not runner.at_work
    assert set(states(sweep)) <= {"PENDING", "PAUSED"}
    again = population(runner, tmp_path)
    again.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    again.run()
    assert states(again) == 6 * ["TERMINATED"]
    check_lineages(again, runner)


def test_configurations_that_json_cannot_hold_come_with_a_transfer(tmp_path: Path) -> None:
    def own(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "function": abs}

    runner = PlayedPopulation(capacity=4)
    sweep = population(runner, tmp_path, number=4, custom_explore_fn=own)
    sweep.run()
    paths = SweepPaths(root=tmp_path)
    record = read_record(paths)
    put_configs(paths, record)
    perturbed = [trial for trial in record.trials.values() if trial.origins]
    assert perturbed
    assert all(trial.config["function"] is abs for trial in perturbed)


def test_a_trial_that_begins_anew_keeps_what_a_transfer_has_made_of_its_configuration(
    tmp_path: Path,
) -> None:
    paths = SweepPaths(root=tmp_path)
    ledger = SweepLedger(paths=paths)
    ledger.append("sweep-started", seed=0)
    for number in range(2):
        ledger.add_trial(Trial(trial_id=f"trial_{number:05d}", config={"function": abs}))
    trial = Trial(trial_id="trial_00000", config={"function": abs})
    transfer = Transfer(
        number=1,
        time=1.0,
        donor="trial_00001",
        checkpoint="000001",
        iteration=1,
        seconds=1.0,
        config={"function": max},
    )
    ledger.add_transfer(trial, transfer)
    ledger.append("trial-cloned", trial="trial_00000", report=1, attempt=1)
    ledger.append("trial-failed", trial="trial_00000", reason="died")
    ledger.append("trial-retry", trial="trial_00000", anew=True)
    record = read_record(paths)
    assert not record.trials["trial_00000"].origins
    put_configs(paths, record)
    assert record.trials["trial_00000"].config == {"function": max}
    assert record.trials["trial_00001"].config == {"function": abs}


def _damaged(lines: Sequence[str], kind: str) -> str:
    return "\n".join(line for line in lines if f'"event": "{kind}"' not in line) + "\n"


@pytest.mark.parametrize(
    "wrong",
    [{"donor": "trial_00009"}, {"checkpoint": "../../elsewhere"}, {"checkpoint": "/etc"}],
    ids=str,
)
def test_a_transfer_from_elsewhere_is_left_out(wrong: dict[str, Any], tmp_path: Path) -> None:
    sweep = population(PlayedPopulation(capacity=2), tmp_path)
    sweep.run()
    lines = [{**e, **wrong} if e["event"] == "trial-perturbed" else e for e in events(tmp_path)]
    (tmp_path / "tune.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    trials = read_record(SweepPaths(root=tmp_path)).trials
    assert all(not trial.origins and trial.transfer is None for trial in trials.values())


@pytest.mark.parametrize("kind", ["trial-perturbed", "trial-cloned", "trial-paused"])
def test_a_ledger_without_some_of_its_lines_still_has_its_trials(kind: str, tmp_path: Path) -> None:
    sweep = population(PlayedPopulation(capacity=2), tmp_path)
    sweep.run()
    ledger = tmp_path / "tune.jsonl"
    ledger.write_text(_damaged(ledger.read_text().splitlines(), kind))
    trials: Mapping[str, Trial] = read_record(SweepPaths(root=tmp_path)).trials
    assert {trial.state for trial in trials.values()} == {TrialState.TERMINATED}
    assert all(trial.transfer is None for trial in trials.values())
