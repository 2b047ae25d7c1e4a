"""What ``restore()`` takes from the run directory, on one rank in this interpreter."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    CheckpointConfig,
    ConfigError,
    Container,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    RunContext,
    RunStoppedError,
    ScalingConfig,
    SlurmConfig,
    SyncConfig,
    UserCallback,
)
from hpctrain.plan.spec import RunSpec
from tests import runs


class Counting(UserCallback):
    """Leaves a file for each report."""

    def after_report(self, run_context: RunContext, metrics: Any, checkpoint: Any) -> None:
        run_context.path.joinpath(f"seen-{metrics[0]['step']}").touch()


class Unpicklable(Counting):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def train() -> str | None:
    checkpoint = hpctrain.get_checkpoint()
    first = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    for step in range(first, 20):
        if step == 3 and hpctrain.get_context().world.attempt == 1:
            raise RuntimeError("fails once")
        saved = Checkpoint.from_dict({"step": step})
        hpctrain.report({"step": step, "val/loss": abs(step - 4)}, saved)
        if hpctrain.should_stop():
            break
    return None


GIVEN: dict[str, Any] = {
    "failure_config": FailureConfig(max_failures=7),
    "checkpoint_config": CheckpointConfig(
        num_to_keep=1, checkpoint_score_attribute="val/loss", checkpoint_score_order="min"
    ),
    "sync_config": SyncConfig(sync_timeout=77),
    "stop": {"step": 6},
    "total_time": "1:00:00",
    "existing": "restart",
    "verbose": 0,
}


def begin(tmp_path: Path, function: Any = train, **changes: Any) -> Path:
    """Begin a run that fails; return its directory."""
    arguments = {"callbacks": [Counting()], **GIVEN, **changes}
    resume = arguments.pop("resume_from_checkpoint", None)
    trainer = DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, name="run", **arguments),
        resume_from_checkpoint=resume,
    )
    with pytest.raises(RuntimeError, match="fails once"):
        trainer.fit()
    return tmp_path / "run"


def test_a_restored_run_is_looked_after_as_before(tmp_path: Path):
    path = begin(tmp_path)
    trainer = DataParallelTrainer.restore(path)
    run = trainer.run_config
    assert {name: getattr(run, name) for name in GIVEN} == {**GIVEN, "existing": "auto"}
    assert (run.name, run.storage_path) == ("run", str(tmp_path))
    assert [type(callback).__name__ for callback in run.callbacks] == ["Counting"]
    result = trainer.fit()
    # It stopped, called back, and kept the best and the newest.
    assert result.metrics["step"] == 6
    assert (path / "seen-6").exists()
    assert [c.path.name for c, _ in result.best_checkpoints] == ["000006", "000004"]
    # The same request: nothing runs.
    assert len(DataParallelTrainer.restore(path).fit().attempts) == 2


def test_a_scaling_config_that_is_given_replaces_one_that_cannot_be_read(tmp_path: Path):
    plan = begin(tmp_path) / "plan.json"
    content = json.loads(plan.read_text())
    content["scaling_config"]["from_another_version"] = 1
    unlike = [dict(content["scaling_config"]), {}, {**content["scaling_config"], "slurm": None}]
    for scaling in unlike:
        plan.write_text(json.dumps({**content, "scaling_config": scaling}))
        with pytest.raises(ConfigError, match=r"plan\.json cannot be used.*scaling_config="):
            DataParallelTrainer.restore(plan.parent)
    given = ScalingConfig(num_workers=0)
    restored = DataParallelTrainer.restore(plan.parent, scaling_config=given)
    assert restored.scaling_config == given


def test_lines_of_the_setup_are_restored_though_no_text_file_shows_them(tmp_path: Path):
    lines = ("module load cuda", "export TOKEN=secret")
    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0, slurm=SlurmConfig(setup=lines)),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0),
    )
    with pytest.raises(RuntimeError, match="fails once"):
        trainer.fit()
    assert "secret" not in (tmp_path / "run" / "plan.json").read_text()
    restored = DataParallelTrainer.restore(tmp_path / "run")
    assert tuple(restored.scaling_config.slurm.setup) == lines


def test_a_time_limit_of_python_is_restored(tmp_path: Path):
    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0, slurm=SlurmConfig(time=timedelta(days=2))),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0),
    )
    with pytest.raises(RuntimeError, match="fails once"):
        trainer.fit()
    restored = DataParallelTrainer.restore(tmp_path / "run").scaling_config
    assert restored.slurm.time == "2880:00"


def test_the_container_is_restored_though_the_run_had_no_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    container = Container(image="docker://torch", mounts=["/data"], options=["--cleanenv"])
    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0, slurm=SlurmConfig(container=container)),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0),
    )
    with pytest.raises(RuntimeError, match="fails once"):
        trainer.fit()
    assert "SlurmConfig(container=...) is for jobs of Slurm" in capsys.readouterr().err
    restored = DataParallelTrainer.restore(tmp_path / "run")
    assert restored.scaling_config.slurm == SlurmConfig(container=container)


def test_a_run_that_was_moved_is_restored_where_it_is(tmp_path: Path):
    moved = begin(tmp_path).rename(tmp_path / "moved")
    assert DataParallelTrainer.restore(moved).run_config.name == "moved"


def test_a_run_config_replaces_the_stored_one_but_not_the_run(tmp_path: Path):
    path = begin(tmp_path)
    changed = RunConfig(name="other", storage_path="elsewhere", stop={"step": 4}, verbose=0)
    trainer = DataParallelTrainer.restore(path, run_config=changed)
    assert trainer.run_config == replace(changed, name="run", storage_path=str(tmp_path))
    result = trainer.fit()
    assert (result.path, result.metrics["step"]) == (path, 4)
    with pytest.raises(ConfigError, match=r"restore\(run_config=\.\.\.\)"):
        DataParallelTrainer.restore(path, run_config={})


def test_what_a_run_began_with_is_given_again(tmp_path: Path):
    def train_further() -> int:
        checkpoint = hpctrain.get_checkpoint()
        assert checkpoint is not None
        if hpctrain.get_context().world.attempt == 1:
            raise RuntimeError("fails once")
        return int(checkpoint.to_dict()["step"])

    start = Checkpoint.from_dict({"step": 9})
    path = begin(tmp_path, train_further, stop=None, resume_from_checkpoint=start)
    assert DataParallelTrainer.restore(path).fit().return_value == 9


def train_from(config: dict[str, Any]) -> int:
    """Save at once, and fail in the attempts that the config names."""
    checkpoint = hpctrain.get_checkpoint()
    assert checkpoint is not None
    step = int(checkpoint.to_dict()["step"])
    if config["saves"]:
        hpctrain.report({"step": step + 1}, Checkpoint.from_dict({"step": step + 1}))
    if hpctrain.get_context().world.attempt == 1 and config["fails"]:
        raise RuntimeError("fails once")
    return step


def begin_from_deleted(tmp_path: Path, **config: bool) -> Path:
    """Begin a run with a checkpoint that is then deleted."""
    start = Checkpoint.from_dict({"step": 9}).to_directory(tmp_path / "start")
    trainer = DataParallelTrainer(
        train_from,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0),
        resume_from_checkpoint=Checkpoint(start),
    )
    with pytest.raises(RuntimeError) if config["fails"] else nullcontext():
        trainer.fit()
    shutil.rmtree(start)
    return tmp_path / "run"


def test_a_finished_run_is_returned_though_what_it_began_with_is_deleted(tmp_path: Path):
    path = begin_from_deleted(tmp_path, fails=False, saves=True)
    result = DataParallelTrainer.restore(path).fit()
    assert (result.return_value, len(result.attempts)) == (9, 1)


def test_a_run_resumes_from_its_own_checkpoint_though_what_it_began_with_is_deleted(
    tmp_path: Path,
):
    path = begin_from_deleted(tmp_path, fails=True, saves=True)
    assert DataParallelTrainer.restore(path).fit().return_value == 10


def test_a_run_without_checkpoints_cannot_resume_if_what_it_began_with_is_deleted(tmp_path: Path):
    path = begin_from_deleted(tmp_path, fails=True, saves=False)
    with pytest.raises(ConfigError, match=r"begins with .*/start, which is deleted"):
        DataParallelTrainer.restore(path).fit()


def test_another_checkpoint_may_replace_one_that_is_deleted(tmp_path: Path):
    path = begin_from_deleted(tmp_path, fails=True, saves=False)
    other = Checkpoint.from_dict({"step": 20})
    trainer = DataParallelTrainer.restore(path, resume_from_checkpoint=other)
    assert trainer.fit().return_value == 20


def train_until(config: dict[str, Any]) -> int:
    """Save each step; return how many this attempt made."""
    checkpoint = hpctrain.get_checkpoint()
    first = int(checkpoint.to_dict()["step"]) + 1 if checkpoint else 1
    for step in range(first, config["last"] + 1):
        hpctrain.report({"step": step}, Checkpoint.from_dict({"step": step}))
    return config["last"] + 1 - first


def finish(tmp_path: Path, last: int) -> Result:
    return runs.fit(train_until, tmp_path, num_workers=0, train_loop_config={"last": last})


def test_a_finished_run_goes_on_with_what_restore_replaces(tmp_path: Path):
    path = finish(tmp_path, 2).path
    result = DataParallelTrainer.restore(path, train_loop_config={"last": 5}).fit()
    assert (result.path, result.metrics["step"], result.return_value) == (path, 5, 3)
    function = partial(train_until, {"last": 6})
    result = DataParallelTrainer.restore(path, train_loop_per_worker=function).fit()
    assert (result.metrics["step"], result.return_value, len(result.attempts)) == (6, 1, 3)
    # The same again, and nothing else: there is nothing to do.
    assert len(DataParallelTrainer.restore(path).fit().attempts) == 3
    assert len(DataParallelTrainer.restore(path, function).fit().attempts) == 3


def test_a_finished_run_is_refused_to_another_request_that_does_not_restore_it(tmp_path: Path):
    finish(tmp_path, 2)
    with pytest.raises(ConfigError, match="is finished, and this fit"):
        finish(tmp_path, 5)


def test_what_is_stored_is_for_its_owner_alone(tmp_path: Path):
    path = begin(tmp_path)
    secret = b"Counting"
    holders = [file for file in path.iterdir() if file.is_file() and secret in file.read_bytes()]
    assert path / "spec.pkl" in holders
    assert stat.S_IMODE(os.stat(path / "spec.pkl").st_mode) == 0o600


@pytest.mark.parametrize("of_older_version", [False, True])
def test_what_is_not_stored_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of_older_version: bool
):
    path = begin(tmp_path, callbacks=[Counting() if of_older_version else Unpicklable()])
    assert (path / "seen-1").exists()
    if of_older_version:
        spec = RunSpec.from_bytes((path / "spec.pkl").read_bytes())
        (path / "spec.pkl").write_bytes(replace(spec, executor=b"").to_bytes())
    run = DataParallelTrainer.restore(path).run_config
    for name in ("failure_config", "checkpoint_config", "sync_config"):
        assert getattr(run, name) == GIVEN[name]
    said = capsys.readouterr().err
    assert "does not hold " in said
    assert "stop={'step': 6} of its RunConfig. Give them: restore(" in said


def test_a_value_of_a_stopped_attempt_is_not_that_of_a_later_one(tmp_path: Path):
    def train_until() -> int | None:
        if hpctrain.get_context().world.attempt > 1:
            return None
        while not hpctrain.should_stop():
            Path(hpctrain.get_context().get_storage(), "stop").touch()
            hpctrain.report({"step": 1}, Checkpoint.from_dict({"step": 1}))
        return 5

    trainer = DataParallelTrainer(
        train_until,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0),
    )
    with pytest.raises(RunStoppedError):
        trainer.fit()
    assert Result.from_path(tmp_path / "run").return_value == 5
    assert trainer.fit().return_value is None


def test_a_run_is_restored_in_another_process(tmp_path: Path):
    folder = tmp_path / "100 % mine"
    folder.mkdir()
    (folder / "helper.py").write_text("def step():\n    return 1\n")
    (folder / "train.py").write_text(
        """
import hpctrain, helper
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

def train():
    hpctrain.report({"step": helper.step()})

DataParallelTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=0),
    run_config=RunConfig(storage_path="runs", name="run", stop=lambda n, metrics: n == 9),
).fit()
"""
    )
    restore = "from hpctrain import *; DataParallelTrainer.restore('runs/run').fit()"
    said = ""
    for argv in (["train.py"], ["-c", restore]):
        said = subprocess.run(
            [sys.executable, *argv], cwd=folder, capture_output=True, text=True, check=True
        ).stdout
    assert "run run is finished" in said
