"""Trials of a sweep on the nodes of an allocation that hang, and what that costs the others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from hpctrain.tune.ledger import SweepPaths, read_record
from hpctrain.tune.trial import TrialState

pytestmark = pytest.mark.slurm

TIMEOUT_S = 150

# The first trial has one of three slots until the last two have ended, which need those of the
# trials that hang.
SWEEP = """
import pathlib, time
import hpctrain, hpctrain.collective
from hpctrain import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from hpctrain import SlurmConfig, tune

FOLDER = pathlib.Path(__file__).parent
KINDS = ["long", "rank", "all", "short", "short too"]

def have_others_ended():
    return hpctrain.collective.broadcast_from_rank_zero(len(list(FOLDER.glob("short*.ended"))) == 2)

def train(config):
    context, saved = hpctrain.get_context(), hpctrain.get_checkpoint()
    rank, attempt, kind = context.get_world_rank(), context.world.attempt, config["kind"]
    step = 0 if saved is None else saved.to_dict()["step"]
    while step < 8 or (kind == "long" and not have_others_ended()):
        if (kind, attempt) == ("all", 1):
            raise RuntimeError("the budget is spent")
        if step == 3 and (kind == "all" or (kind, rank, attempt) == ("rank", 1, 1)):
            time.sleep(1000)
        hpctrain.collective.barrier()
        time.sleep(0.05)
        step += 1
        hpctrain.report({"step": step}, Checkpoint.from_dict({"step": step}) if not rank else None)
    (FOLDER / f"{kind}.ended").touch()

if __name__ == "__main__":
    results = tune.Tuner(
        DataParallelTrainer(
            train, scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=2))
        ),
        param_space={"train_loop_config": {"kind": tune.grid_search(KINDS)}},
        tune_config=tune.TuneConfig(max_concurrent_trials=3),
        run_config=RunConfig(
            storage_path=FOLDER,
            name="sweep",
            failure_config=FailureConfig(hang_timeout_s=10, max_failures=1),
        ),
    ).fit()
    print("ended", len(results), results.num_errors)
"""


def test_trials_that_hang_are_named_and_cost_no_other(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP)
    done = subprocess.run(
        ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=4", sys.executable, str(script)],
        env={**os.environ, **virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert "ended 5 1" in done.stdout, done.stdout + done.stderr
    trials = read_record(SweepPaths(root=tmp_path / "sweep")).trials
    long, rank, everything, *short = [Result.from_path(tmp_path / "sweep" / t) for t in trials]
    for result in (long, *short):
        assert len(result.attempts) == 1, "it was at work meanwhile, or came after them"
    for result in (long, rank, *short):
        assert result.state == "finished"
        steps = [metrics["step"] for metrics in result.metrics_history]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) == 8 or result is long

    # A rank of one hangs in its first attempt, while the other waits for it.
    first, _ = rank.attempts
    assert re.search(r"rank 1 of 2 on node\d hangs in phase training, after report 3", first.cause)

    # All of the other one do, and no further attempt is left.
    assert trials["trial_00002"].state is TrialState.ERROR
    assert len(everything.attempts) == 2
    reason = trials["trial_00002"].reason
    assert re.search(r"(rank \d of|all) 2 .*hangs? in phase training, after report 3", reason)
    assert re.search(r'sweep\.py", line \d+ in train', reason), "where that is"
