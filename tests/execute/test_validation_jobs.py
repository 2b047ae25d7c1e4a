"""Validations in jobs of their own, on a virtual cluster: real jobs, real ends of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

TIMEOUT_S = 150.0
COMMANDS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "sacct", "srun")
SCRIPT = """
import os, signal, socket, sys, time
from pathlib import Path
import hpctrain
from hpctrain import (
    Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig,
    ValidationConfig, ValidationTaskConfig,
)

HERE = Path(__file__).parent

def wait_for(name, over=lambda: False):
    while not (HERE / name).exists() and not over():
        time.sleep(0.05)

def train():
    found = hpctrain.get_checkpoint()
    first = 1 if found is None else found.to_dict()["step"] + 1
    for step in range(first, {steps} + 1):
        mine = Checkpoint.from_dict({{"step": step}})
        metrics = {{"step": step, "score": -1.0, "niceness_of_rank": os.nice(0)}}
        hpctrain.report(metrics, checkpoint=mine, validation={validation})
    if {waits}:
        (HERE / "trained").touch()
        wait_for("go", over=is_stopped)

def is_stopped():
    # A run that is cancelled stops at a report.
    if {reports}:
        hpctrain.report({{"step": {steps}}})
    return hpctrain.should_stop()

{validate}

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(
            resources_per_worker={{"CPU": 2}}, slurm=SlurmConfig(setup=["export OF_SETUP=1"])
        ),
        run_config=RunConfig(
            name="run",
            storage_path=HERE,
            verbose=0,
            launcher="slurm",
            checkpoint_config=CheckpointConfig(checkpoint_score_attribute="score"),
        ),
        validation_config={config},
    ).fit()
"""
GOOD = """
def validate(checkpoint):
    (HERE / f"began-{checkpoint.to_dict()['step']}-{os.environ['SLURM_JOB_ID']}").touch()
    wait_for("validate")
    names = ("SLURM_JOB_ID", "SLURM_JOB_PARTITION", "OF_SETUP", "CUDA_VISIBLE_DEVICES",
             "OMP_NUM_THREADS", "SLURM_JOB_CPUS_PER_NODE")
    return {
        "score": float(checkpoint.to_dict()["step"]),
        "niceness": os.nice(0),
        "cwd": os.getcwd(),
        **{name: os.environ.get(name) for name in names},
    }
"""
IN_JOBS = "ValidationConfig(fn=validate, slurm_config=SlurmConfig(partition='low'){more})"


class Run:
    """A run of a script on a cluster, whose Slurm commands are counted."""

    def __init__(self, path: Path, cluster: VirtualCluster) -> None:
        self.path = path
        self.paths = RunPaths(path / "run")
        self.calls = path / "calls"
        self.environment = {**os.environ, **cluster.environ}
        self._search_path = self.environment["PATH"]
        (path / "bin").mkdir()
        for name in COMMANDS:
            real = shutil.which(name, path=self._search_path)
            program = path / "bin" / name
            program.write_text(
                f"#!/bin/sh\necho {name} ${{SLURM_JOB_ID:-login}} >>{self.calls}\n"
                f'exec {real} "$@"\n'
            )
            program.chmod(0o755)
        self.environment["PATH"] = f"{path}/bin:{self._search_path}"
        self.driver: subprocess.Popen[bytes] | None = None

    def start(
        self,
        validate: str = GOOD,
        config: str = IN_JOBS.format(more=""),
        *,
        steps: int = 1,
        validation: Any = True,
        waits: bool = False,
        reports: bool = False,
    ) -> None:
        text = SCRIPT.format(
            validate=validate,
            config=config,
            steps=steps,
            validation=validation,
            waits=waits,
            reports=reports,
        )
        (self.path / "script.py").write_text(text)
        self.again()

    def again(self) -> None:
        self.driver = subprocess.Popen(
            [sys.executable, "script.py"], cwd=self.path, env=self.environment
        )

    def end(self) -> Result:
        assert self.driver is not None
        assert self.driver.wait(TIMEOUT_S) == 0, self.logs()
        return Result.from_path(self.paths.root)

    def stop_training(self) -> None:
        """Stop the run where it waits after its last checkpoint; what validates goes on."""
        self.await_that(lambda: (self.path / "trained").exists())
        cancel = [sys.executable, "-m", "hpctrain.cli", "cancel", str(self.paths.root)]
        subprocess.run(cancel, env=self.environment, check=True, timeout=60)
        assert self.driver is not None
        self.driver.wait(TIMEOUT_S)

    def allow(self, name: str) -> None:
        (self.path / name).touch()

    def await_that(self, condition: Callable[[], Any], *, may_fail: bool = False) -> Any:
        def look() -> Any:
            assert self.driver is not None
            assert may_fail or self.driver.poll() in (None, 0), self.logs()
            return condition()

        return wait_until(look, self.logs, timeout_s=TIMEOUT_S)

    def began(self) -> list[str]:
        """Return the jobs whose validations have begun."""
        return [path.name.rpartition("-")[2] for path in sorted(self.path.glob("began-*"))]

    def slurm(self, *argv: str) -> str:
        environment = {**self.environment, "PATH": self._search_path}
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def state(self, job_id: str) -> str:
        shown = self.slurm("scontrol", "--oneliner", "show", "job", job_id)
        return shown.partition("JobState=")[2].split()[0]

    def commands(self) -> Counter[str]:
        """Return how often each command was run, but for what the waiting driver asks."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        calls = [line.split() for line in lines]
        # As often as the run lasts.
        ask = ("squeue", "scontrol")
        return Counter(name for name, job in calls if name not in ask or job != "login")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.paths) if event["event"] == kind]

    def errors(self) -> dict[str, str | None]:
        return {event["checkpoint"]: event["error"] for event in self.events("validation-ended")}

    def leftovers(self) -> list[str]:
        return [path.name for path in self.paths.submission.glob("validation-*")]

    def logs(self) -> str:
        files = [*self.paths.root.glob("slurm/*.out"), *self.paths.root.glob("logs/*/*.out")]
        return "\n".join(path.read_text(errors="replace") for path in files)


@pytest.fixture
def run(tmp_path: Path, virtual_slurm: VirtualCluster) -> Iterator[Run]:
    run = Run(tmp_path, virtual_slurm)
    yield run
    if run.driver is not None and run.driver.poll() is None:
        run.driver.kill()
        run.driver.wait()
    for name in ("run", "run-validation"):
        run.slurm("scancel", f"--name={name}")


def test_a_validation_is_a_job_of_its_own(run: Run) -> None:
    run.allow("validate")
    config = IN_JOBS.format(more=", use_gpu=True, resources={'CPU': 3, 'GPU': 2}")
    run.start(config=config)
    result = run.end()
    (_, metrics) = result.best_checkpoints[0]
    assert metrics["score"] == 1.0
    assert metrics["niceness"] == metrics["niceness_of_rank"]
    (started,) = run.events("validation-started")
    assert metrics["SLURM_JOB_ID"] == started["job_id"]
    assert started["job_id"] not in result.job_ids
    assert metrics["SLURM_JOB_PARTITION"] == "low"
    assert (metrics["SLURM_JOB_CPUS_PER_NODE"], metrics["OMP_NUM_THREADS"]) == ("3", "3")
    assert metrics["OF_SETUP"] == "1"
    assert metrics["cwd"] == str(run.path)
    job = run.slurm("scontrol", "--oneliner", "show", "job", started["job_id"])
    assert "JobName=run-validation " in job
    assert "gres:gpu:2" in job or "gres/gpu=2" in job
    assert run.leftovers() == []


def test_a_validation_without_gpus_has_what_a_worker_has(run: Run) -> None:
    run.allow("validate")
    run.start()
    (_, metrics) = run.end().best_checkpoints[0]
    assert (metrics["OMP_NUM_THREADS"], metrics["CUDA_VISIBLE_DEVICES"]) == ("2", "")


def test_processes_cost_no_command_of_slurm_and_a_job_that_ends_by_itself_one(
    tmp_path: Path, virtual_slurm: VirtualCluster
) -> None:
    counted = {}
    for name, config in (
        ("none", "None"),
        ("processes", "ValidationConfig(fn=validate)"),
        ("jobs", IN_JOBS.format(more="")),
    ):
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name, virtual_slurm)
        run.allow("validate")
        validate = GOOD.replace("os.environ['SLURM_JOB_ID']", "0")
        run.start(validate, config, steps=3, validation=name != "none")
        assert run.end().state == "finished"
        assert len(run.events("validation-ended")) == (0 if name == "none" else 3)
        counted[name] = run.commands()
    assert counted["processes"] == counted["none"]
    # The partition is asked for once, when the run is submitted.
    assert counted["jobs"] - counted["none"] == Counter(sbatch=3, sinfo=1)


ENDS = """
def validate(checkpoint):
    step = checkpoint.to_dict()["step"]
    (HERE / f"began-{step}-{os.environ['SLURM_JOB_ID']}").touch()
    if step == 1:
        raise ValueError("no such data")
    if step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if step in (3, 4):
        time.sleep(600)
    return {"score": 0.5}
"""


def test_a_job_that_dies_disturbs_nobody_and_says_why(run: Run) -> None:
    task = "ValidationTaskConfig(timeout_s=600 if step != 3 else 2)"
    run.start(ENDS, IN_JOBS.format(more=", max_jobs=3"), steps=5, validation=task, waits=True)
    cancelled = run.await_that(lambda: [*run.path.glob("began-4-*")])[0].name.rpartition("-")[2]
    run.slurm("scancel", cancelled)
    run.await_that(lambda: len(run.errors()) == 5)
    # All of that while the training goes on.
    assert Result.from_path(run.paths.root).state == "running"
    run.allow("go")
    result = run.end()
    assert run.errors() == {
        "000001": "ValueError: no such data",
        "000002": "it was killed by SIGKILL",
        "000003": "it took longer than timeout_s=2",
        "000004": f"its job {cancelled} was cancelled",
        "000005": None,
    }
    assert [m["score"] for _, m in result.best_checkpoints] == [-1.0] * 4 + [0.5]
    assert len(result.attempts) == 1
    told = run.paths.job_log(str(result.job_ids[0])).read_text()
    assert f"Its log: {run.paths.validation_log(1, 1)}" in told
    assert 'raise ValueError("no such data")' in told
    assert run.leftovers() == []


def test_a_node_that_is_lost_with_a_validation_disturbs_nobody(
    run: Run, virtual_slurm: VirtualCluster
) -> None:
    slurm = "slurm_config=SlurmConfig(sbatch_args=['--nodelist=node4'])"
    run.start(config=f"ValidationConfig(fn=validate, {slurm})", waits=True)
    (job_id,) = run.await_that(run.began)
    try:
        virtual_slurm.power_off("node4")
        run.await_that(run.errors)
    finally:
        virtual_slurm.power_on("node4")
    run.allow("go")
    run.end()
    assert run.errors() == {"000001": f"its job {job_id} lost its node (node4)"}


def test_a_job_that_does_not_begin_is_waited_for_and_cancelled(run: Run) -> None:
    slurm = "slurm_config=SlurmConfig(sbatch_args=['--begin=now+1hour'])"
    run.start(config=f"ValidationConfig(fn=validate, {slurm}, wait_timeout_s=3)", steps=2)
    result = run.end()
    assert [m["score"] for _, m in result.best_checkpoints] == [-1.0, -1.0]
    assert all("ValidationConfig(wait_timeout_s=...)" in e for e in run.errors().values() if e)
    (started,) = run.events("validation-started")
    run.await_that(lambda: run.state(started["job_id"]) == "CANCELLED")
    assert run.commands()["scancel"] == 1
    assert run.leftovers() == []


def test_a_run_whose_job_is_queued_again_takes_its_validations_over(run: Run) -> None:
    run.start(steps=2, waits=True)
    began = run.await_that(run.began)
    run.await_that(lambda: (run.path / "trained").exists())
    job_id = Result.from_path(run.paths.root).status.job_id
    run.slurm("scontrol", "requeue", str(job_id))
    run.await_that(lambda: len(run.events("attempt-started")) == 2)
    run.allow("validate")
    run.allow("go")
    result = run.end()
    assert [m["SLURM_JOB_ID"] for _, m in result.best_checkpoints][:1] == began
    assert [m["score"] for _, m in result.best_checkpoints] == [1.0, 2.0]
    # That of the run, and one for each checkpoint.
    assert run.commands()["sbatch"] == 3


def test_a_job_that_ended_while_no_executor_was_there_is_taken_in(run: Run) -> None:
    run.start(waits=True, reports=True)
    (job_id,) = run.await_that(run.began)
    run.stop_training()
    assert run.errors() == {}
    run.allow("validate")
    run.await_that(lambda: run.state(job_id) == "COMPLETED", may_fail=True)
    run.allow("go")
    run.again()
    (_, metrics) = run.end().best_checkpoints[0]
    assert metrics["SLURM_JOB_ID"] == job_id


def test_a_job_that_waits_is_submitted_again_by_a_fit_of_something_else(run: Run) -> None:
    slurm = "slurm_config=SlurmConfig(sbatch_args=['--begin=now+1hour'])"
    run.start(config=f"ValidationConfig(fn=validate, {slurm})", waits=True, reports=True)
    (started,) = run.await_that(lambda: run.events("validation-started"))
    run.stop_training()
    run.allow("go")
    run.allow("validate")
    # It would refuse what this fit() writes.
    run.start(waits=True)
    (_, metrics) = run.end().best_checkpoints[0]
    assert metrics["score"] == 1.0
    assert metrics["SLURM_JOB_ID"] != started["job_id"]
    assert run.state(started["job_id"]) == "CANCELLED"


def test_a_run_that_is_cancelled_now_takes_its_validations_along(run: Run) -> None:
    run.start(waits=True)
    (job_id,) = run.await_that(run.began)
    run.await_that(lambda: (run.path / "trained").exists())
    cancel = [sys.executable, "-m", "hpctrain.cli", "cancel", "--now", str(run.paths.root)]
    done = subprocess.run(cancel, env=run.environment, capture_output=True, text=True, timeout=90)
    assert f"Cancelled what validates its checkpoints: job {job_id}." in done.stderr + done.stdout
    assert run.state(job_id) == "CANCELLED"
    assert not [name for name in run.leftovers() if name.endswith((".sh", ".json"))]
    assert run.driver is not None
    run.driver.wait(TIMEOUT_S)
    # A run that resumes validates again.
    run.allow("go")
    run.allow("validate")
    run.again()
    (_, metrics) = run.end().best_checkpoints[0]
    assert metrics["score"] == 1.0
    assert metrics["SLURM_JOB_ID"] != job_id


def test_the_job_of_a_checkpoint_that_is_deleted_is_cancelled(run: Run) -> None:
    run.start(waits=True)
    (job_id,) = run.await_that(run.began)
    shutil.rmtree(run.paths.checkpoints / "000001")
    run.await_that(lambda: run.state(job_id) == "CANCELLED")
    run.allow("go")
    run.end()
    assert run.errors() == {"000001": "the checkpoint is gone"}


def test_a_partition_that_never_starts_it_is_refused_before_anything_is_submitted(
    run: Run,
) -> None:
    config = "ValidationConfig(fn=validate, slurm_config=SlurmConfig(partition='short', time='5'))"
    run.start(config=config)
    assert run.driver is not None
    assert run.driver.wait(TIMEOUT_S) != 0
    assert run.commands()["sbatch"] == 0
