"""What was submitted is what runs: a module that is edited meanwhile changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.processes import run_python
from tests.waiting import wait_until, wait_until_final

HELPER = "VALUE = 'as it was'\n"
EDITED = "VALUE = 'edited'\n"
SCRIPT = """
import sys
import time
from pathlib import Path

import hpctrain
from hpctrain import (
    Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, SlurmConfig,
)


def train(config):
    import helper

    if config["waits"]:
        kept = hpctrain.get_checkpoint()
        if kept is None:
            hpctrain.report({"value": helper.VALUE}, Checkpoint.from_dict({"step": 1}))
            # The job is taken away, or asked to leave: ranks learn that after a further report.
            while not hpctrain.should_stop():
                time.sleep(0.05)
                hpctrain.report({"value": helper.VALUE})
            return
        hpctrain.report({"value": f"again {helper.VALUE}"})
        return
    edit = config["edit"]
    if edit and hpctrain.get_checkpoint() is None and not Path("edited").exists():
        Path("edited").touch()
        Path("helper.py").write_text(edit)
        raise RuntimeError("once")
    hpctrain.report({"value": helper.VALUE})


if __name__ == "__main__":
    launcher, snapshot, edit, *sbatch_args = sys.argv[1:]
    DataParallelTrainer(
        train,
        train_loop_config={"edit": edit, "waits": edit == "waits"},
        scaling_config=ScalingConfig(
            num_workers=1, slurm=SlurmConfig(time="5", sbatch_args=sbatch_args)
        ),
        run_config=RunConfig(
            name="run",
            storage_path="runs",
            launcher=launcher,
            snapshot=snapshot == "True",
            failure_config=FailureConfig(max_failures=1),
        ),
    ).submit()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def start(place: Path, *words: str, environ: dict[str, str] | None = None) -> None:
    run_python("train.py", *words, cwd=place, environ=environ)


def value(place: Path) -> str:
    result = wait_until_final(place / "runs" / "run", timeout_s=120)
    assert result.error is None, result.error
    found: str = Result.from_path(place / "runs" / "run").metrics["value"]
    return found


@pytest.mark.parametrize(("snapshot", "expected"), [(True, "as it was"), (False, "edited")])
def test_a_restart_imports_what_the_first_attempt_did(
    place: Path, snapshot: bool, expected: str
) -> None:
    start(place, "local", str(snapshot), EDITED)
    assert value(place) == expected
    logs = (place / "runs" / "run" / "logs").rglob("*")
    texts = [path.read_text() for path in logs if path.is_file()]
    assert any("helper.py has changed since fit()" in text for text in texts) is snapshot


@pytest.mark.slurm
@pytest.mark.parametrize(("snapshot", "expected"), [("True", "as it was"), ("False", "edited")])
def test_a_job_that_waited_runs_what_was_submitted(
    place: Path, virtual_slurm: VirtualCluster, snapshot: str, expected: str
) -> None:
    environ = dict(virtual_slurm.environ)
    start(place, "slurm", snapshot, "", "--hold", environ=environ)
    (place / "helper.py").write_text(EDITED)
    job = Result.from_path(place / "runs" / "run").status.job_id
    assert job is not None
    released = virtual_slurm.run_on("head", ["scontrol", "release", job])
    assert released.returncode == 0, released.stderr
    wait_until(lambda: (place / "runs" / "run" / "metrics.jsonl").exists(), "a report")
    assert value(place) == expected


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("option", "leave"),
    [
        ("--requeue", ("scontrol", "requeue")),
        ("--no-requeue", ("scancel", "--signal=USR2")),
    ],
    ids=["queued again", "next job of a chain"],
)
def test_a_later_job_of_a_run_imports_what_was_submitted(
    place: Path,
    virtual_slurm: VirtualCluster,
    option: str,
    leave: tuple[str, ...],
) -> None:
    run = place / "runs" / "run"
    start(place, "slurm", "True", "waits", option, environ=dict(virtual_slurm.environ))
    wait_until((run / "checkpoints" / "000001").exists, "a checkpoint")
    (place / "helper.py").write_text(EDITED)
    first = Result.from_path(run).status.job_id
    assert first is not None
    asked = virtual_slurm.run_on("head", [*leave, first])
    assert asked.returncode == 0, asked.stderr
    assert value(place) == "again as it was"
    attempts = Result.from_path(run).attempts
    assert len(attempts) == 2
    assert (Result.from_path(run).status.job_id == first) is (option == "--requeue")
