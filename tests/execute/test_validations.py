"""Validation beside training, with real ranks and validators in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    CheckpointConfig,
    ConfigError,
    DataParallelTrainer,
    Result,
    SlurmConfig,
    ValidationConfig,
    ValidationTaskConfig,
)
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.store import CheckpointStore
from hpctrain.testing.slurm import VirtualCluster
from tests.runs import fit
from tests.waiting import wait_until

TIMEOUT_S = 60.0


def _wait_for(path: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not os.path.exists(path):
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def _train(config: dict[str, Any]) -> None:
    """Save a checkpoint in each step; rank 0 waits for a file before some steps."""
    rank = hpctrain.get_context().get_world_rank()
    found = hpctrain.get_checkpoint()
    for step in range(1 if found is None else found.to_dict()["step"] + 1, config["steps"] + 1):
        if path := config.get("before", {}).get(step):
            _wait_for(path)
        mine = Checkpoint.from_dict({"step": step}) if rank == 0 else None
        how = config.get("validation", True)
        hpctrain.report({"step": step, "score": -1.0}, checkpoint=mine, validation=how)
    if path := config.get("at_end"):
        _wait_for(path)


def _validate(checkpoint: Checkpoint, factor: int = 1) -> dict[str, Any]:
    step = checkpoint.to_dict()["step"]
    print(f"validating {step}")
    return {
        "score": {1: 0.5, 2: 0.9, 3: 0.1}.get(step, 0.0) * factor,
        "niceness": os.nice(0),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "pid": os.getpid(),
    }


def _fit(path: Path, validate: Any = _validate, workers: int = 2, **options: Any) -> Result:
    names = ("task_config", "wait_timeout_s", "use_gpu", "slurm_config", "max_jobs")
    given = {name: options.pop(name) for name in names if name in options}
    checkpoint_config = options.pop("checkpoint_config", CheckpointConfig())
    return fit(
        _train,
        path,
        num_workers=workers,
        train_loop_config={"steps": 3, **options},
        checkpoint_config=checkpoint_config,
        validation_config=ValidationConfig(fn=validate, **given),
    )


def _events(result: Result | Path, kind: str) -> list[dict[str, Any]]:
    root = result if isinstance(result, Path) else Path(result.path)
    return [event for event in read_events(RunPaths(root)) if event["event"] == kind]


def _scores(result: Result) -> list[float]:
    return [metrics["score"] for _, metrics in result.best_checkpoints]


BEST = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="score")


@pytest.mark.mpi
def test_what_a_validation_finds_reaches_the_checkpoint_the_history_and_the_ranking(
    tmp_path: Path,
) -> None:
    result = _fit(tmp_path, checkpoint_config=BEST)
    # The best one, and the newest.
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [3, 2]
    assert _scores(result) == [0.1, 0.9]
    assert [metrics["score"] for metrics in result.metrics_history] == [0.5, 0.9, 0.1]
    (_, metrics) = result.best_checkpoints[0]
    assert metrics["niceness"] >= 10
    assert metrics["gpus"] == ""
    assert metrics["pid"] != os.getpid()
    log = RunPaths(tmp_path / "run").validation_log(1, 3)
    assert log.read_text() == "validating 3\n"
    assert not log.with_suffix(".json").exists()
    assert [event["error"] for event in _events(result, "validation-ended")] == [None] * 3


def test_a_finished_run_is_not_taken_for_one_that_validates_otherwise(tmp_path: Path) -> None:
    assert _scores(_fit(tmp_path, workers=0)) == [0.5, 0.9, 0.1]
    assert _scores(_fit(tmp_path, workers=0)) == [0.5, 0.9, 0.1]
    with pytest.raises(ConfigError, match=r"asks for something else:\n  validation_config"):
        _fit(tmp_path, lambda _: {"score": 0.0}, workers=0)
    other = ValidationTaskConfig(fn_kwargs={"factor": 2})
    with pytest.raises(ConfigError, match=r"asks for something else:\n  validation_config"):
        _fit(tmp_path, workers=0, task_config=other)


def test_where_the_training_is_no_job_a_validation_is_a_process(tmp_path: Path) -> None:
    elsewhere = {"slurm_config": SlurmConfig(partition="gpu"), "max_jobs": 3}
    result = _fit(tmp_path, workers=0, **elsewhere)
    assert _scores(result) == [0.5, 0.9, 0.1]
    assert result.metrics["pid"] != os.getpid()
    # Where it runs decides nothing.
    assert _scores(_fit(tmp_path, workers=0)) == [0.5, 0.9, 0.1]
    restored = DataParallelTrainer.restore(tmp_path / "run").validation_config
    assert restored is not None
    assert (restored.slurm_config, restored.max_jobs) == tuple(elsewhere.values())
    with pytest.raises(ConfigError, match=r"^ValidationConfig\(slurm_config=...\): .*--array"):
        _fit(tmp_path / "other", workers=0, slurm_config=SlurmConfig(sbatch_args=["--array=1-2"]))


def test_what_is_damaged_of_a_validation_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _fit(tmp_path, workers=0).path
    damaged = Path(path, "checkpoints/000003/.hpctrain-validation.json")
    damaged.write_bytes(damaged.read_bytes().replace(b"0.1", b"0.7"))
    capsys.readouterr()
    assert _scores(Result.from_path(path)) == [0.5, 0.9, -1.0]
    assert f"{damaged}: what a validation found is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.mpi)])
def test_fit_waits_for_what_is_pending(tmp_path: Path, workers: int) -> None:
    released = tmp_path / "released"

    def validate(checkpoint: Checkpoint) -> dict[str, Any]:
        # The training has ended long before.
        status = json.loads((tmp_path / "run" / "status.json").read_text())
        if checkpoint.to_dict()["step"] == 3:
            released.touch()
        return {"score": 1.0, "phase": status["phase"]}

    result = _fit(tmp_path, validate, workers)
    assert released.exists()
    assert _scores(result) == [1.0, 1.0, 1.0]
    assert result.metrics["phase"] == "validating"
    assert result.status.phase != "validating" or result.state == "finished"


@pytest.mark.mpi
def test_a_pending_checkpoint_is_kept_whatever_the_others_score(tmp_path: Path) -> None:
    third = tmp_path / "run" / "checkpoints" / "000003"

    def validate(checkpoint: Checkpoint) -> dict[str, Any]:
        step = checkpoint.to_dict()["step"]
        if step == 1:
            # Two more are committed beside it, and only one is to be kept.
            deadline = time.monotonic() + TIMEOUT_S
            while not third.exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
        return {"score": float(step)}

    result = _fit(tmp_path, validate, checkpoint_config=BEST)
    assert [event["error"] for event in _events(result, "validation-ended")] == [None] * 3
    assert [metrics["score"] for metrics in result.metrics_history] == [1.0, 2.0, 3.0]
    assert _scores(result) == [3.0]


@pytest.mark.mpi
def test_a_validator_that_raises_or_is_killed_disturbs_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def validate(checkpoint: Checkpoint) -> dict[str, Any]:
        step = checkpoint.to_dict()["step"]
        if step == 1:
            raise ValueError("no such data:\n  rows 3 to 5\x1b[31m" + 5000 * " and 6")
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"score": 0.3}

    result = _fit(tmp_path, validate)
    assert result.state == "finished"
    assert _scores(result) == [-1.0, -1.0, 0.3]
    told = capfd.readouterr().err
    log = RunPaths(tmp_path / "run").validation_log(1, 1)
    assert "000001 failed: ValueError: no such data:\n  rows 3 to 5" in told
    assert "\x1b" not in told
    assert len(_events(result, "validation-ended")[0]["error"]) < 2100
    # The frames of the function, and not those of hpctrain around it.
    assert 'raise ValueError("no such data' in told
    assert "validate.py" not in told
    kept = json.loads(RunPaths(tmp_path / "run").validation_failure(1, 1).read_bytes())
    assert (kept["type"], kept["phase"]) == ("ValueError", "validating")
    assert f"Its log: {log}" in told
    assert "ValueError: no such data" in log.read_text()
    assert "000002 failed: it was killed by SIGKILL" in told
    shown = subprocess.run(
        [sys.executable, "-m", "hpctrain.cli", "checkpoints", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    header, *rows = shown.splitlines()
    assert header.split()[-2:] == ["VALIDATION", "METRICS"]
    assert ["failed" in row for row in rows[:3]] == [True, True, False]
    assert "done" in rows[2]
    assert not [
        m for m in CheckpointStore(tmp_path / "run" / "checkpoints").manifests() if m.validation
    ]


def test_a_validation_that_a_warning_of_slurm_ended_is_begun_again_once(tmp_path: Path) -> None:
    def validate(checkpoint: Checkpoint) -> dict[str, Any]:
        # As if it came before the process could ignore it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    result = _fit(tmp_path, validate, workers=0, steps=1)
    assert len(_events(result, "validation-started")) == 2
    (ended,) = _events(result, "validation-ended")
    assert ended["error"] == "it was killed by SIGTERM"


@pytest.mark.mpi
def test_what_is_no_dict_or_takes_too_long_is_a_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def validate(checkpoint: Checkpoint, seconds: float) -> Any:
        if checkpoint.to_dict()["step"] == 1:
            return 0.5
        time.sleep(seconds)
        return {"score": 1.0}

    task = ValidationTaskConfig(fn_kwargs={"seconds": 100}, timeout_s=5.0)
    _fit(tmp_path, validate, steps=2, task_config=task)
    first, second = _events(tmp_path / "run", "validation-ended")
    assert "the validation function returned 0.5 of type float" in first["error"]
    assert second["error"] == "it took longer than timeout_s=5"
    log = RunPaths(tmp_path / "run").validation_log(1, 1)
    assert "Return a dict of metrics" in log.read_text()


@pytest.mark.mpi
def test_fit_waits_no_longer_than_it_was_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def validate(checkpoint: Checkpoint) -> dict[str, Any]:
        time.sleep(TIMEOUT_S)
        return {"score": 1.0}

    result = _fit(tmp_path, validate, wait_timeout_s=0.5)
    assert result.state == "finished"
    assert _scores(result) == [-1.0] * 3
    assert "ValidationConfig(wait_timeout_s=...)" in capfd.readouterr().err


@pytest.mark.mpi
def test_a_report_has_arguments_of_its_own(tmp_path: Path) -> None:
    result = _fit(
        tmp_path,
        validation=ValidationTaskConfig(fn_kwargs={"factor": 2}),
        task_config=ValidationTaskConfig(fn_kwargs={"factor": 10}),
    )
    assert _scores(result) == [1.0, 1.8, 0.2]


@pytest.mark.mpi
def test_a_rank_without_a_checkpoint_may_ask_for_the_validation(tmp_path: Path) -> None:
    def train() -> None:
        rank = hpctrain.get_context().get_world_rank()
        mine = Checkpoint.from_dict({"step": 2}) if rank == 0 else None
        hpctrain.report({"step": 2}, checkpoint=mine, validation=rank == 1)

    result = fit(train, tmp_path, validation_config=ValidationConfig(fn=_validate))
    assert _scores(result) == [0.9]
    assert "validation" not in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.mpi
def test_ranks_that_ask_for_different_validations_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        rank = hpctrain.get_context().get_world_rank()
        task = ValidationTaskConfig(fn_kwargs={"factor": rank + 2})
        for _ in range(2):
            mine = Checkpoint.from_dict({"step": 2}) if rank == 1 else None
            hpctrain.report({"step": 2}, checkpoint=mine, validation=task)

    result = fit(train, tmp_path, validation_config=ValidationConfig(fn=_validate))
    # Rank 0 gives no part, and is the lowest that asks.
    assert _scores(result) == [1.8, 1.8]
    told = capfd.readouterr().err
    assert told.count("ranks asked for different validations") == 1
    assert 'report 1: ranks asked for different validations: rank 0 for {"fn_kwargs"' in told
    assert "; rank 1 for {" in told
    assert "That of rank 0, the lowest, counts." in told


@pytest.mark.mpi
def test_a_validation_that_no_rank_gives_a_checkpoint_for_is_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        hpctrain.report({"step": 1}, validation=hpctrain.get_context().get_world_rank() == 1)

    fit(train, tmp_path, validation_config=ValidationConfig(fn=_validate))
    assert "report 1: rank 1 asked for a validation, but no rank gave" in capfd.readouterr().err


SCRIPT = """
import os, sys, time
from pathlib import Path
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, ValidationConfig

HERE = Path(sys.argv[1])

def train():
    found = hpctrain.get_checkpoint()
    rank = hpctrain.get_context().get_world_rank()
    for step in range(1 if found is None else 2, 3):
        mine = Checkpoint.from_dict({"step": step}) if rank == 0 else None
        hpctrain.report({"step": step}, checkpoint=mine, validation=step == 1)
        while step == 1 and not (HERE / "go").exists():
            time.sleep(0.05)

def validate(checkpoint):
    (HERE / "pids").mkdir(exist_ok=True)
    (HERE / "pids" / f"{os.getpid()}-{time.time_ns()}").touch()
    while not (HERE / "go").exists():
        time.sleep(0.05)
    return {"score": 0.7}

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="run", storage_path=HERE, verbose=0, launcher="local"),
        validation_config=ValidationConfig(fn=validate),
    ).fit()
"""


@pytest.mark.mpi
def test_ranks_that_were_started_elsewhere_wait_for_it_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    # More than ranks wait for the last word of one that has failed.
    slow = SCRIPT.replace('return {"score": 0.7}', 'time.sleep(6); return {"score": 0.7}')
    script.write_text(slow.replace(', launcher="local"', ""))
    (tmp_path / "go").touch()
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    argv = [mpiexec, "-n", "2", sys.executable, str(script), str(tmp_path)]
    assert subprocess.run(argv, timeout=TIMEOUT_S).returncode == 0
    result = Result.from_path(tmp_path / "run")
    assert result.status.launcher == "spmd"
    assert [m.get("score") for m in result.metrics_history] == [0.7, None]


def _await_gone(pid: int) -> None:
    status = Path(f"/proc/{pid}/status")
    wait_until(lambda: not status.exists() or "\nState:\tZ" in status.read_text(), f"end of {pid}")


@pytest.mark.mpi
def test_a_run_whose_executor_was_killed_validates_again(tmp_path: Path) -> None:
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(SCRIPT)
    argv = [sys.executable, str(script), str(tmp_path)]
    first = subprocess.Popen(argv)
    wait_until(lambda: pids.is_dir() and any(pids.iterdir()), "a validation", process=first)
    first.kill()
    first.wait()
    (pid,) = (int(path.name.partition("-")[0]) for path in pids.iterdir())
    _await_gone(pid)
    (tmp_path / "go").touch()
    assert subprocess.run(argv, timeout=TIMEOUT_S).returncode == 0
    result = Result.from_path(tmp_path / "run")
    assert [m.get("score") for m in result.metrics_history] == [0.7, None]
    assert len(_events(result, "validation-started")) == 2
    assert len(list(pids.iterdir())) == 2


@pytest.mark.slurm
def test_a_job_that_is_queued_again_validates_again(
    tmp_path: Path, virtual_slurm: VirtualCluster
) -> None:
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(SCRIPT.replace('launcher="local"', 'launcher="slurm"'))
    environment = {**os.environ, **virtual_slurm.environ}
    driver = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment)
    wait_until(lambda: pids.is_dir() and any(pids.iterdir()), "a validation", process=driver)
    job_id = Result.from_path(tmp_path / "run").status.job_id
    subprocess.run(["scontrol", "requeue", str(job_id)], env=environment, check=True)
    wait_until(lambda: len(list(pids.iterdir())) == 2, "another validation", process=driver)
    (tmp_path / "go").touch()
    assert driver.wait(TIMEOUT_S) == 0
    result = Result.from_path(tmp_path / "run")
    assert result.job_ids == [job_id]
    assert [m.get("score") for m in result.metrics_history] == [0.7, None]
    assert [e["error"] for e in _events(result, "validation-ended")] == [None]


IN_JOB = {"fn": print, "slurm_config": SlurmConfig()}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"fn": 3}, r"ValidationConfig\(fn=3\): a function is needed"),
        ({}, "ValidationConfig needs fn"),
        ({"fn": print, "wait_timeout_s": 0}, r"ValidationConfig\(wait_timeout_s=...\) is 0"),
        ({"fn": print, "task_config": {}}, "A ValidationTaskConfig is needed"),
        ({"fn": print, "ray_remote_kwargs": {"num_gpus": 1}}, "use_gpu=True"),
        ({"fn": print, "slurm_config": "gpu"}, "A SlurmConfig is needed"),
        ({"fn": print, "max_jobs": 0, "slurm_config": SlurmConfig()}, r"max_jobs=...\) is 0"),
        ({"fn": print, "max_jobs": 2}, r"give slurm_config=SlurmConfig\(...\)"),
        ({"fn": print, "resources": {"CPU": 2}}, r"give slurm_config=SlurmConfig\(...\)"),
        ({**IN_JOB, "resources": {"TPU": 2}}, r"has the keys \['TPU'\]"),
        ({**IN_JOB, "resources": {"CPU": 1.5}}, r"CPU"),
        ({**IN_JOB, "resources": {"GPU": 2}}, "set use_gpu=True, or leave GPU out"),
        ({**IN_JOB, "resources": {"GPU": 0}, "use_gpu": True}, "set use_gpu=False"),
        ({"fn": print, "slurm_config": SlurmConfig(spare_nodes=1)}, "Leave spare_nodes out"),
        ({"fn": print, "slurm_config": SlurmConfig(nodes=2)}, "Leave nodes out"),
        ({"fn": print, "slurm_config": SlurmConfig(mpi="pmi2")}, "Leave mpi out"),
    ],
)
def test_a_wrong_configuration_is_refused(arguments: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ValidationConfig(**arguments)


def test_arguments_are_json_values_and_none_is_called_checkpoint() -> None:
    with pytest.raises(ConfigError, match="stored as JSON"):
        ValidationTaskConfig(fn_kwargs={"data": object()})
    with pytest.raises(ConfigError, match="'checkpoint'"):
        ValidationTaskConfig(fn_kwargs={"checkpoint": 1})


def test_a_trainer_takes_no_function_for_a_configuration() -> None:
    with pytest.raises(ConfigError, match="A ValidationConfig is needed"):
        DataParallelTrainer(_train, validation_config=_validate)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("validation", "has_config", "has_checkpoint", "complaint"),
    [
        ("yes", True, True, "True, False or a ValidationTaskConfig"),
        (1, True, True, "True, False or a ValidationTaskConfig"),
        (True, False, True, "validation_config=ValidationConfig"),
        (True, True, False, "has no checkpoint"),
    ],
)
def test_a_wrong_report_is_refused(
    tmp_path: Path, validation: Any, has_config: bool, has_checkpoint: bool, complaint: str
) -> None:
    def train() -> None:
        checkpoint = Checkpoint.from_dict({"step": 1}) if has_checkpoint else None
        hpctrain.report({"step": 1}, checkpoint=checkpoint, validation=validation)

    config = ValidationConfig(fn=_validate) if has_config else None
    with pytest.raises(ConfigError, match=complaint):
        fit(train, tmp_path, num_workers=0, validation_config=config)


def test_a_pending_validation_survives_a_failure_and_a_restored_trainer_makes_it(
    tmp_path: Path,
) -> None:
    marker = tmp_path / "failed"

    def train() -> None:
        if not marker.exists():
            marker.touch()
            checkpoint = Checkpoint.from_dict({"step": 2})
            hpctrain.report({"step": 2}, checkpoint=checkpoint, validation=True)
            raise RuntimeError("a failure")

    with pytest.raises(RuntimeError, match="a failure"):
        fit(train, tmp_path, num_workers=0, validation_config=ValidationConfig(fn=_validate))
    (pending,) = CheckpointStore(tmp_path / "run" / "checkpoints").manifests()
    assert pending.validation == {"fn_kwargs": {}, "timeout_s": None}
    result = DataParallelTrainer.restore(tmp_path / "run").fit()
    assert _scores(result) == [0.9]
