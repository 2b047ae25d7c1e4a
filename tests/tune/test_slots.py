"""Trials are packed on a machine so that no CPU, GPU or byte is given twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain
from hpctrain import ConfigError, DataParallelTrainer, RunConfig, ScalingConfig, tune
from hpctrain.tune.slots import Capacity, Need, Slot, Slots
from hpctrain.worker.bootstrap import gpus_of


def test_slots_never_give_more_than_there_is_and_a_trial_alone_always_fits(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        capacity = Capacity(
            cpus=int(rng.integers(1, 9)),
            gpus=tuple(f"GPU-{i}" for i in range(rng.integers(0, 4))),
            mem_bytes=int(rng.integers(1, 20)),
            most_trials=int(rng.integers(1, 5)),
        )
        slots, running = Slots(capacity), dict[str, tuple[Need, tuple[str, ...]]]()
        for step in range(60):
            if running and rng.random() < 0.4:
                name = str(rng.choice(sorted(running)))
                slots.give_back(name)
                del running[name]
                continue
            need = Need(
                cpus=int(rng.integers(1, 12)),
                gpus=int(rng.integers(0, len(capacity.gpus) + 1)),
                mem_bytes=int(rng.integers(0, capacity.mem_bytes + 1)),
            )
            slot = slots.take(f"t{step}", need)
            gpus = None if slot is None else slot.gpus
            needs = [each for each, _ in running.values()]
            used = {gpu for _, taken in running.values() for gpu in taken}
            fits = not running or (
                len(running) < capacity.most_trials
                and sum(n.cpus for n in needs) + need.cpus <= capacity.cpus
                and sum(n.mem_bytes for n in needs) + need.mem_bytes <= capacity.mem_bytes
            )
            assert (gpus is not None) == (fits and need.gpus <= len(capacity.gpus) - len(used))
            if gpus is not None:
                assert len(gpus) == need.gpus
                assert not used & set(gpus)
                running[f"t{step}"] = need, gpus

    each_example(check)


def test_more_gpus_than_there_are_are_refused() -> None:
    slots = Slots(Capacity(cpus=8, gpus=("0",)))
    with pytest.raises(ConfigError, match="needs 2 GPUs, and this machine shows 1"):
        slots.take("a", Need(cpus=1, gpus=2))


@pytest.mark.parametrize(
    ("need", "message"),
    [
        (
            Need(cpus=9, workers=9),
            r"needs 9 CPUs \(9 workers with 1 each\), and this allocation has 8",
        ),
        (Need(cpus=1, mem_bytes=2**31), r"needs 2 GiB of memory, and this allocation has 1 GiB"),
    ],
    ids=["cpus", "memory"],
)
def test_what_slurm_has_not_allocated_is_refused_on_one_node_too(need: Need, message: str) -> None:
    # A step of it may be bound to fewer CPUs.
    slots = Slots(Capacity(cpus=2, allocated_cpus=8, mem_bytes=2**30))
    with pytest.raises(ConfigError, match=message):
        slots.take("a", need)
    assert slots.take("b", Need(cpus=8)) == Slot()


@pytest.mark.parametrize(
    "need",
    [Need(cpus=9), Need(cpus=1, gpus=2), Need(cpus=1, mem_bytes=11)],
    ids=["cpus", "gpus", "memory"],
)
def test_what_is_never_held_waits_for_no_other_before_it_is_refused(need: Need) -> None:
    slots = Slots(Capacity(cpus=8, gpus=("0",), mem_bytes=10, allocated_cpus=8, most_trials=1))
    assert slots.take("a", Need(cpus=1)) is not None
    assert slots.fits(need)
    with pytest.raises(ConfigError, match="b needs"):
        slots.take("b", need)
    assert not slots.fits(Need(cpus=1))


def test_without_an_allocation_workers_may_share_cpus_and_no_memory() -> None:
    slots = Slots(Capacity(cpus=2, mem_bytes=10))
    with pytest.raises(ConfigError, match=r"memory, and this machine has"):
        slots.take("a", Need(cpus=1, mem_bytes=11))
    assert slots.take("a", Need(cpus=9)) == Slot()


def test_a_trial_that_was_found_at_work_keeps_its_slot() -> None:
    slots = Slots(Capacity(cpus=2, gpus=("0", "1")))
    slots.keep("a", Need(cpus=1, gpus=1), Slot(gpus=("1",)))
    assert slots.take("b", Need(cpus=1, gpus=1)) == Slot(gpus=("0",))
    assert slots.take("c", Need(cpus=1)) is None


def hold_gpu(config: Mapping[str, Any]) -> None:
    """Take the GPU of each rank, which no other rank may have now, and give it back."""
    context = hpctrain.get_context()
    (gpu,) = gpus_of(context.world, 1)
    held = Path(config["folder"], f"gpu-{gpu}")
    held.touch(exist_ok=False)
    hpctrain.report({"gpu": int(gpu), "x": 1})
    held.unlink()


def test_the_space_chooses_how_many_gpus_a_trial_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    # Four workers at the same time, so that GPUs are what trials wait for.
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    results = tune.Tuner(
        DataParallelTrainer(hold_gpu),
        param_space={
            "train_loop_config": {"folder": str(tmp_path)},
            "scaling_config": ScalingConfig(num_workers=tune.choice([1, 2]), use_gpu=True),
        },
        tune_config=tune.TuneConfig(num_samples=4, seed=1),
        run_config=RunConfig(storage_path=tmp_path, name="sweep", verbose=0),
    ).fit()
    assert not results.errors
    chosen = [result.config["scaling_config"].num_workers for result in results]
    assert set(chosen) == {1, 2}
    lines = map(json.loads, (tmp_path / "sweep/tune.jsonl").read_text().splitlines())
    given = {line["trial"]: line["gpus"] for line in lines if line["event"] == "trial-started"}
    assert [len(given[result.path.name]) for result in results] == chosen
    for result, workers in zip(results, chosen, strict=True):
        assert result.status.world_size == workers
