"""A run is begun again from its record: real runs of one script, on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.cli.json_output import schema
from hpctrain.launch.run_environment import select_variables
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status
from hpctrain.uncaught import INTERRUPTED
from tests.cli.test_json_output import check
from tests.processes import run_python
from tests.runs import reported
from tests.waiting import wait_until

GOLDEN = Path(__file__).parent / "golden"
SCRIPT = """
import sys

import hpctrain
import hpctrain.data
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig


class Unpicklable:
    def __call__(self, report, metrics):
        return False

    def __reduce__(self):
        raise TypeError("not this one")


def train(config):
    import model

    rows = sum(len(b["x"]) for b in hpctrain.get_dataset_shard("train").iter_batches())
    for step in range(3):
        hpctrain.report({"loss": config["lr"] * model.FACTOR / (step + 1), "rows": rows})


if __name__ == "__main__":
    name, workers, kind = sys.argv[1:]
    DataParallelTrainer(
        train,
        train_loop_config={"lr": 0.5},
        datasets={"train": hpctrain.data.read_csv("rows.csv")},
        scaling_config=ScalingConfig(num_workers=int(workers)),
        run_config=RunConfig(
            name=name,
            verbose=0,
            launcher="local" if workers != "0" else "auto",
            snapshot=kind != "no-snapshot",
            stop=Unpicklable() if kind == "unpicklable" else None,
        ),
    ).fit()
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one script: usual, without a snapshot, in the interpreter, with a lost stop rule."""
    place = tmp_path_factory.mktemp("place")
    (place / "train.py").write_text(SCRIPT)
    (place / "model.py").write_text("FACTOR = 3\n")
    (place / "rows.csv").write_text("x\n1\n2\n3\n4\n")
    for words in (
        ("run", "2", "usual"),
        ("bare", "1", "no-snapshot"),
        ("inline", "0", "usual"),
        ("lost", "1", "unpicklable"),
    ):
        argv = [sys.executable, "train.py", *words]
        subprocess.run(argv, cwd=place, check=True, timeout=120)
    return place


@pytest.fixture
def place(begun: Path) -> Path:
    """The same place, with nothing edited and no replay."""
    (begun / "model.py").write_text("FACTOR = 3\n")
    (begun / "rows.csv").write_text("x\n1\n2\n3\n4\n")
    for replayed in (begun / "hpctrain_runs").glob("*-replay-*"):
        shutil.rmtree(replayed)
    return begun


def replay(
    place: Path, *words: str, code: int = 0, **environ: str
) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "hpctrain.cli", "replay", *words, cwd=place, environ=environ, code=code)


def losses(root: Path) -> list[float]:
    return [metrics["loss"] for metrics in reported(root)]


@pytest.mark.mpi
def test_a_run_whose_module_was_edited_gives_the_same_losses(place: Path, tmp_path: Path) -> None:
    (place / "model.py").write_text("FACTOR = 7\n")
    root = place / "hpctrain_runs" / "run"
    # From elsewhere, by its directory.
    said = replay(tmp_path, str(root), HPCTRAIN_LAUNCHER="").stderr
    new = root.with_name("run-replay-1")
    assert Result.from_path(new).error is None
    assert losses(new) == losses(root) == [1.5, 0.75, 0.5]
    assert f"replays    {root}\nbegins     {new}\n" in said
    assert "of these edited since: model.py" in said
    before, plan = (json.loads((run / "plan.json").read_bytes()) for run in (root, new))
    assert plan["replay_of"] == {"path": str(root), "run_id": before["run_id"]}
    assert before["replay_of"] is None
    assert plan["run_id"] != before["run_id"]
    for name in ("fingerprint", "digests", "modules", "argv", "cwd", "scaling_config"):
        assert plan[name] == before[name], name
    # The replay has all that it needs, too: its number is the next one.
    replay(place, "run-replay-1")
    assert losses(root.with_name("run-replay-2")) == losses(root)


@pytest.mark.mpi
def test_a_name_and_a_place_are_given_and_the_same_command_finds_that_run(
    place: Path, tmp_path: Path
) -> None:
    words = ("run", "--name", "again", "--storage-path", str(tmp_path / "new"))
    replay(place, *words)
    assert len(losses(tmp_path / "new" / "again")) == 3
    said = replay(place, *words).stderr
    assert "resumes" in said
    assert len(losses(tmp_path / "new" / "again")) == 3
    said = replay(place, "bare", *words[1:], code=2).stderr
    assert "'again'" in said
    assert "is no replay of" in said
    said = replay(place, "run", "--name", "run", code=2).stderr
    assert "Choose another --name" in said


@pytest.mark.mpi
def test_without_a_snapshot_the_module_is_as_it_is_now_and_that_is_said(place: Path) -> None:
    (place / "model.py").write_text("FACTOR = 6\n")
    said = replay(place, "bare").stderr
    assert "differs    module model.py: " in said
    assert "as they were" not in said
    new = place / "hpctrain_runs" / "bare-replay-1"
    assert losses(new) == [3.0, 1.5, 1.0]
    plans = [json.loads((run / "plan.json").read_bytes()) for run in (new, new.with_name("bare"))]
    assert plans[0]["modules"] != plans[1]["modules"]


def test_what_has_changed_or_is_gone_is_said_before_the_start(place: Path) -> None:
    (place / "rows.csv").write_text("x\n1\n2\n")
    said = replay(place, "run", "--dry-run").stdout
    assert "files of the datasets: as they were -> changed since; the last one: " in said
    (place / "rows.csv").unlink()
    (place / "model.py").unlink()
    said = replay(place, "bare", "--dry-run").stdout
    assert "rows.csv: gone" in said
    assert "module model.py: " in said
    assert " -> gone" in said


def test_a_tree_that_cannot_be_compared_is_not_called_the_same(place: Path) -> None:
    code = place / "hpctrain_runs" / "run" / "code.json"
    before = code.read_bytes() if code.exists() else None
    try:
        code.write_text("{")
        said = " ".join(replay(place, "run", "--dry-run").stdout.split())
        assert "unknown other files of the tree (" in said
        assert "is damaged" in said
        code.write_text(json.dumps({"top": str(place), "error": "git cannot be started"}))
        said = " ".join(replay(place, "run", "--dry-run").stdout.split())
        assert "unknown other files of the tree (git cannot be started)" in said
    finally:
        code.unlink()
        if before is not None:
            code.write_bytes(before)


def golden_run(place: Path) -> Path:
    """Return a copy of a run whose record names a package that is not installed, and a variable."""
    root = place / "hpctrain_runs" / "golden"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(place / "hpctrain_runs" / "run", root)
    plan = json.loads((root / "plan.json").read_bytes())
    plan["versions"]["a_package_that_was_removed"] = "1.2.3"
    # Whatever whoever runs the tests has set.
    plan["environment"] = {**select_variables(os.environ), "NCCL_ALGO": "Ring", "UCX_TLS": "tcp"}
    plan["environment"].pop("NCCL_DEBUG", None)
    (root / "plan.json").write_text(json.dumps(plan))
    return root


@pytest.mark.parametrize("width", [80, 120])
def test_the_dry_run(place: Path, width: int, request: pytest.FixtureRequest) -> None:
    golden_run(place)
    (place / "model.py").write_text("FACTOR = 7\n")
    before = sorted((place / "hpctrain_runs").iterdir())
    variables = {"NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO", "UCX_TLS": ""}
    said = replay(place, "golden", "--dry-run", COLUMNS=str(width), **variables).stdout
    assert sorted((place / "hpctrain_runs").iterdir()) == before
    said = said.replace(str(place), "/place").replace(sys.executable, "python")
    golden = GOLDEN / f"replay-{width}.txt"
    if request.config.getoption("rewrite_golden"):
        golden.write_text(said)
    assert said == golden.read_text()


@pytest.mark.mpi
def test_the_json_is_what_the_schema_says(place: Path) -> None:
    content = json.loads(replay(place, "run", "--json").stdout)
    check(content, schema("replay"))
    assert content["state"] == "finished"
    assert content["began"] is True
    assert content["kept"] == ["model.py"]
    content = json.loads(replay(place, "run", "--json", "--dry-run").stdout)
    check(content, schema("replay"))
    assert (content["name"], content["began"]) == ("run-replay-2", False)


def test_what_cannot_be_replayed_is_refused_with_the_next_step(place: Path) -> None:
    runs = place / "hpctrain_runs"
    said = replay(place, "inline", code=2).stderr
    assert "num_workers=0" in said
    assert "with num_workers=1 it can be replayed" in said
    said = replay(place, "lost", code=2).stderr
    assert "could not be pickled" in said
    assert f"cd {place} && python train.py lost 1 unpicklable" in said
    for launcher, expected in (
        ("spmd", "your own srun or mpiexec had started"),
        ("allocation", "--launcher slurm"),
        ("mpiexec", "HPCTRAIN_HOSTFILE=FILE"),
    ):
        copied = _edited(runs, launcher, launch_plan={"launcher": launcher})
        said = replay(place, str(copied), code=2, SLURM_JOB_ID="").stderr
        assert expected in said, launcher
    for field, value, expected in (
        ("trainer", "hpctrain.predict.batch_predictor.BatchPrediction", "a batch prediction"),
        ("format", 99, "has format 99"),
        ("versions", {"python": "2.7.18"}, "bytecode of its version"),
    ):
        said = replay(place, str(_edited(runs, field, **{field: value})), code=2).stderr
        assert expected in said, field
    assert not list(runs.glob("*-replay-*"))


def test_damaged_and_missing_files_are_named(place: Path) -> None:
    runs = place / "hpctrain_runs"
    copied = _edited(runs, "no-spec")
    (copied / "spec.pkl").unlink()
    assert "has no spec.pkl" in replay(place, str(copied), code=2).stderr
    (copied / "spec.pkl").write_bytes(b"cut off")
    (copied / "spec.pkl").chmod(0o600)
    assert "spec.pkl is damaged" in replay(place, str(copied), code=4).stderr
    for field, value in (("launch_plan", {"launcher": 5}), ("versions", [1]), ("digests", "x")):
        odd = _edited(runs, "odd", **{field: value})
        assert "plan.json is damaged" in replay(place, str(odd), code=4).stderr, field
    (copied / "plan.json").write_text("{")
    assert "plan.json is damaged" in replay(place, str(copied), code=4).stderr
    (copied / "plan.json").unlink()
    assert "it was never begun" in replay(place, str(copied), code=2).stderr
    moved = runs / "gone cwd"
    shutil.rmtree(moved, ignore_errors=True)
    shutil.copytree(runs / "run", moved)
    said = replay(place, str(moved), "--dry-run").stdout
    assert "gone-cwd-replay-1" in said


def test_a_run_that_others_can_write_is_not_executed(place: Path) -> None:
    copied = _edited(place / "hpctrain_runs", "shared")
    copied.chmod(0o775)
    said = replay(place, str(copied), code=2).stderr
    assert "would run as you" in said
    assert "chmod -R go-w" in said
    assert "a run of your own" in said
    copied.chmod(0o755)
    (copied / "plan.json").chmod(0o666)
    assert "would run as you" in replay(place, str(copied), code=2).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_run_of_another_user_is_not_executed(place: Path) -> None:
    copied = _edited(place / "hpctrain_runs", "foreign")
    for path in (copied, *copied.rglob("*")):
        os.chown(path, 12345, 12345)
    said = replay(place, str(copied), code=2).stderr
    assert "would run as you" in said
    assert not (place / "hpctrain_runs" / "foreign-replay-1").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_run_that_can_only_be_read_says_who_can_replay_it(place: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from hpctrain.launch.replay_record import read_replayable\n"
        "from hpctrain.rundir.paths import RunPaths\n"
        "os.setgroups([])\nos.setresgid(12345, 12345, 12345)\nos.setresuid(12345, 12345, 12345)\n"
        "read_replayable(RunPaths(Path(sys.argv[1])))\n"
    )
    # Below pytest's own directory, which is its user's, others read nothing.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        copied = Path(folder) / "run"
        shutil.copytree(place / "hpctrain_runs" / "run", copied)
        argv = [sys.executable, "-c", code, str(copied)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert "can be read by its owner only" in done.stderr
    assert "Ask the owner to replay the run. Its script was: cd " in done.stderr


def test_options_of_slurm_need_a_job(place: Path) -> None:
    said = replay(place, "run", "--partition", "gpu", code=2).stderr
    assert "--launcher slurm submits it" in said
    said = replay(place, "run", "--storage-path", "s3://bucket/runs", code=2).stderr
    assert "is a URL" in said
    said = replay(place, "run", "--launcher", "spmd", code=2).stderr
    assert "it starts its own ranks" in said


def test_a_dry_run_finds_a_place_that_cannot_be_written(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for storage in (tmp_path / "file", tmp_path / "file" / "runs"):
        said = replay(place, "run", "--dry-run", "--storage-path", str(storage), code=2).stderr
        assert f"{tmp_path / 'file'} is not a directory. Move it away" in said


def test_a_run_of_this_machine_is_given_the_nodes_that_a_job_needs(place: Path) -> None:
    words = ("run", "--launcher", "slurm", "--dry-run")
    said = replay(place, *words, code=2).stderr
    assert "Give --nodes NODES or --ntasks-per-node NTASKS-PER-NODE, or a site profile" in said
    assert "--site" not in said
    assert "#SBATCH --nodes=2\n" in replay(place, *words, "--nodes", "2").stdout
    said = replay(place, "run", "--nodes", "2", code=2).stderr
    assert "--launcher slurm submits it" in said


@pytest.mark.mpi
def test_ctrl_c_names_the_command_that_resumes_it(place: Path) -> None:
    (place / "model.py").write_text("import time\n\nFACTOR = 3\ntime.sleep(100)\n")
    root = place / "hpctrain_runs" / "slow"
    argv = [sys.executable, "-m", "hpctrain.cli", "replay", "bare", "--name", "slow"]
    with subprocess.Popen(
        argv, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        wait_until(lambda: _phase(root) == "training", "its training function", process=command)
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=60)
    origin = place / "hpctrain_runs" / "bare"
    expected = f"interrupted; hpctrain replay {origin} --name slow resumes from its beginning"
    assert expected in said
    assert command.returncode == INTERRUPTED
    shutil.rmtree(root)


def _phase(root: Path) -> str:
    status = read_status(RunPaths(root)) if root.exists() else None
    return "" if status is None else status.phase


def _edited(runs: Path, name: str, **changes: Any) -> Path:
    """Return a copy of a run, beside the runs, with another plan."""
    root = runs / f"edited-{name}"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(runs / "run", root)
    plan = json.loads((root / "plan.json").read_bytes())
    for field, value in changes.items():
        plan[field] = {**plan[field], **value} if isinstance(value, dict) else value
    (root / "plan.json").write_text(json.dumps(plan))
    return root
