"""Sweeps whose job, which is queued again, reaches its time limit while trials are paused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from hpctrain.tune.ledger import SweepPaths, SweepRecord, read_record
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

TIMEOUT_S = 150

# As in docs/tune.rst.
JOB = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4 --no-kill --open-mode=append --requeue --time=5
{python} {folder}/sweep.py
status=$?
test $status -ne 5 || scontrol requeue "$SLURM_JOB_ID"
echo $status > {folder}/status.new
mv {folder}/status.new {folder}/status
"""

# Some trials make no more reports before a job has begun that found others paused.
SWEEP = """
import os, pathlib, subprocess, time
import hpctrain
from hpctrain import Checkpoint, RunConfig, tune
from hpctrain.tune.ledger import SweepPaths, read_record
from hpctrain.tune.schedulers import HyperBandScheduler, PopulationBasedTraining
from hpctrain.tune.trial import TrialState

FOLDER = pathlib.Path(__file__).parent
SWEEP = FOLDER / "sweep"

def train(config):
    own, saved = hpctrain.get_context().get_trial_name(), hpctrain.get_checkpoint()
    steps = [] if saved is None else saved.to_dict()["steps"]
    while len(steps) < LENGTH:
        while is_held(own, len(steps)) and not (FOLDER / "go").exists():
            time.sleep(0.1)
        steps = [*steps, (own, config["x"])]
        metrics = {"loss": config["x"], "step": len(steps)}
        hpctrain.report(metrics, Checkpoint.from_dict({"steps": steps}))

def limit_time():
    "Let this job end soon: limits are whole minutes, but an administrator may move the end."
    job_id, end = os.environ["SLURM_JOB_ID"], int(time.time()) + 20
    moved = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(end))
    subprocess.run(["scontrol", "update", f"JobId={job_id}", f"EndTime={moved}"], check=True)
    os.environ["SLURM_JOB_END_TIME"] = str(end)

def is_paused_left():
    trials = read_record(SweepPaths(root=SWEEP)).trials.values()
    return any(trial.state is TrialState.PAUSED for trial in trials)

if __name__ == "__main__":
    if tune.Tuner.can_restore(SWEEP) and is_paused_left():
        (FOLDER / "go").touch()
    else:
        limit_time()
    if tune.Tuner.can_restore(SWEEP):
        tuner = tune.Tuner.restore(SWEEP, train)
    else:
        config = tune.TuneConfig(metric="loss", mode="min", **CONFIG)
        run_config = RunConfig(storage_path=FOLDER, name="sweep")
        tuner = tune.Tuner(train, param_space=SPACE, tune_config=config, run_config=run_config)
    results = tuner.fit()
    print("ended", len(results), results.num_errors)
"""

# Brackets of 3, 3 and 4 trials with milestones at 4, 2 and 1. The last trial of the last one is
# late, so that the others of it are paused.
HYPERBAND = """
LENGTH = 6
SPACE = {"x": tune.grid_search([0.3, 0.1, 0.2, 0.5, 0.6, 0.4, 0.8, 0.7, 0.9, 0.75])}
CONFIG = {"scheduler": HyperBandScheduler(max_t=4, reduction_factor=2)}

def is_held(own, step):
    return own == "trial_00009"
"""
REPORTS_OF_HYPERBAND = [4, 4, 4, 4, 2, 4, 1, 4, 1, 2]

# Two of four at a time: each is paused after four steps.
POPULATION = """
LENGTH = 9
SPACE = {"x": tune.grid_search([0.4, 0.3, 0.2, 0.1])}
CONFIG = {
    "max_concurrent_trials": 2,
    "scheduler": PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=4,
        hyperparam_mutations={"x": tune.uniform(0, 1)},
    ),
}

def is_held(own, step):
    return step == 6
"""


class Chain:
    """The job of a sweep, in a folder of its own."""

    def __init__(self, cluster: VirtualCluster, folder: Path, code: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.environment = {**os.environ, **cluster.environ, "HPCTRAIN_LAUNCHER": ""}
        head, main = SWEEP.split('if __name__ == "__main__":')
        (folder / "sweep.py").write_text(f'{head}{code}\nif __name__ == "__main__":{main}')
        (folder / "job.sh").write_text(JOB.format(python=sys.executable, folder=folder))
        argv = ["sbatch", "--parsable", f"--output={folder}/printed", str(folder / "job.sh")]
        self.job_id = self(*argv)

    def __call__(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def printed(self) -> str:
        path = self.folder / "printed"
        return path.read_text() if path.exists() else ""

    def finish(self) -> None:
        """Wait for the last of the jobs."""
        ended = self.folder / "status"
        wait_until(
            lambda: ended.exists() and ended.read_text() != "5\n",
            self.printed,
            timeout_s=TIMEOUT_S,
        )
        assert ended.read_text() == "0\n", self.printed()

    @property
    def record(self) -> SweepRecord:
        return read_record(SweepPaths(root=self.folder / "sweep"))

    def results(self) -> list[Result]:
        return [Result.from_path(self.folder / "sweep" / name) for name in self.record.trials]

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / "sweep/tune.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.fixture(scope="module")
def chains(
    virtual_slurm: VirtualCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Chain]]:
    """Two sweeps, at the same time on two nodes each."""
    folder = tmp_path_factory.mktemp("chains")
    codes = {"hyperband": HYPERBAND, "population": POPULATION}
    chains = {name: Chain(virtual_slurm, folder / name, code) for name, code in codes.items()}
    yield chains
    for chain in chains.values():
        chain("scancel", "--quiet", chain.job_id)


def check_hand_over(chain: Chain) -> None:
    """Check that the job was queued again at its time limit, and that nothing was lost by that."""
    restored = chain.events("sweep-restored")
    assert restored, chain.printed()
    assert {event["job_id"] for event in restored} == {chain.job_id}, "the same job, queued again"
    (reason,) = {event["reason"] for event in chain.events("sweep-interrupted")}
    assert reason == f"the time limit of job {chain.job_id} ends"
    for trial in chain.record.trials.values():
        assert trial.state.value == "TERMINATED", chain.printed()
        paths = RunPaths(chain.folder / "sweep" / trial.trial_id)
        ended = [event for event in read_events(paths) if event["event"] == "attempt-ended"]
        assert "worker" not in {event["kind"] for event in ended}, "none has failed"


def test_paused_trials_of_hyperband_go_on_in_the_job_that_is_queued_again(
    chains: dict[str, Chain],
) -> None:
    chain = chains["hyperband"]
    chain.finish()
    check_hand_over(chain)
    assert "ended 10 0" in chain.printed()
    histories = [[m["step"] for m in each.metrics_history] for each in chain.results()]
    assert [len(steps) for steps in histories] == REPORTS_OF_HYPERBAND, "as without a limit"
    for steps in histories:
        assert steps == list(range(1, len(steps) + 1)), "nothing is repeated, nothing left out"


def test_a_population_goes_on_with_each_step_of_each_trial_once(chains: dict[str, Chain]) -> None:
    chain = chains["population"]
    chain.finish()
    check_hand_over(chain)
    assert "ended 4 0" in chain.printed()
    ordered, done = chain.events("trial-perturbed"), chain.events("trial-cloned")
    assert [e["trial"] for e in done] == [e["trial"] for e in ordered], "each once"
    configs = {name: {event["config"]["x"]} for name, event in _by_trial(chain, "trial-added")}
    for name, event in _by_trial(chain, "trial-perturbed"):
        configs[name].add(event["config"]["x"])
    for result, trial in zip(chain.results(), chain.record.trials.values(), strict=True):
        assert result.checkpoint is not None
        steps = result.checkpoint.to_dict()["steps"]
        assert len(steps) == 9, "each is trained as long as the others"
        assert all(x in configs[who] for who, x in steps)
        assert steps[-1][0] != trial.trial_id or steps[-1][1] == trial.config["x"]
        made = [m["step"] for m in result.metrics_history if m["step"] > 4]
        assert made[-5:] == [5, 6, 7, 8, 9], "nothing is repeated, nothing left out"


def _by_trial(chain: Chain, kind: str) -> list[tuple[str, dict[str, Any]]]:
    return [(event["trial"], event) for event in chain.events(kind)]
