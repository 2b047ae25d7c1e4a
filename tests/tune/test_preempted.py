"""A sweep in a job that makes room for one of a higher priority."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.tune.test_allocation import (
    SIZE,
    TIMEOUT_S,
    environment,
    places,
    printed,
    record,
    script,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

# One of the trials has ended before, and two run.
SWEEP = """
def train(config):
    if config["x"] > 1:
        return goes_on(config)
    name = hpctrain.get_context().get_trial_name()
    with open(FOLDER / "short", "a") as file:
        print(name, file=file)
    hpctrain.report({"x": 1})

if os.environ.get("SLURM_RESTART_COUNT"):
    (FOLDER / "go").touch()
if tune.Tuner.can_restore(FOLDER / "sweep"):
    tuner = tune.Tuner.restore(FOLDER / "sweep", train)
else:
    tuner = tune.Tuner(
        train, param_space={"x": tune.grid_search([1, 2, 3])}, run_config=run_config()
    )
results = tuner.fit()
print("ENDED", [result.metrics["x"] for result in results], results.num_errors)
"""


def submit(cluster: VirtualCluster, folder: Path, command: str, *options: str) -> str:
    submitted = subprocess.run(
        ["sbatch", "--parsable", "--nodes=2", *SIZE, *options, f"--wrap={command}"],
        env=environment(cluster, folder),
        cwd=folder,
        timeout=TIMEOUT_S,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return submitted.stdout.strip()


def test_a_preempted_sweep_goes_on_once_its_job_has_room_again(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    nodes = "--nodelist=node1,node2"
    # As the documentation has it: if the sweep leaves in time, the job is queued again by itself.
    sweep = f"{sys.executable} {script(tmp_path, SWEEP)}"
    command = f'{sweep}; test $? -ne 5 || scontrol requeue "$SLURM_JOB_ID"'
    kept = (f"--output={tmp_path}/printed", "--open-mode=append", "--requeue")
    job = submit(virtual_slurm, tmp_path, command, "--partition=low", nodes, *kept)
    wait_until(
        lambda: len(places(tmp_path)) == 2 and "TERMINATED" in states(tmp_path),
        lambda: printed(tmp_path),
        timeout_s=TIMEOUT_S,
    )
    runs = [tmp_path / "sweep" / f"trial_0000{number}" for number in (1, 2)]
    wait_until(lambda: all(list(run.glob("checkpoints/0*")) for run in runs))
    rival = f"touch {tmp_path}/rival"
    submit(virtual_slurm, tmp_path, rival, "--partition=high", "--exclusive", nodes)
    wait_until((tmp_path / "rival").exists, lambda: printed(tmp_path), timeout_s=TIMEOUT_S)
    assert "ENDED" not in printed(tmp_path)
    wait_until(lambda: "ENDED" in printed(tmp_path), lambda: printed(tmp_path), timeout_s=TIMEOUT_S)
    assert "ENDED [1, 2, 3] 0" in printed(tmp_path)
    assert (tmp_path / "short").read_text().split() == ["trial_00000"], "it is not run again"
    for run in runs:
        result = Result.from_path(run)
        assert result.state == "finished"
        assert len(result.attempts) == 2
        assert set(result.job_ids) == {job}
        steps = [metrics["step"] for metrics in result.metrics_history]
        assert steps == list(range(len(steps))), "nothing is repeated, nothing left out"


def states(folder: Path) -> list[str]:
    if not (folder / "sweep/tune.jsonl").exists():
        return []
    return [trial.state.value for trial in record(folder).trials.values()]
