"""Ranks in a container on two nodes, through real mount namespaces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.errors import LaunchError, WorkerError
from hpctrain.testing.slurm import VirtualCluster
from tests.containers.conftest import Image
from tests.processes import run_python

pytestmark = [pytest.mark.slurm, pytest.mark.mpi]
TIMEOUT_S = 240

SCRIPT = """
import json, os, signal, sys
import hpctrain
from hpctrain import Checkpoint, Container, DataParallelTrainer, FailureConfig, HpctrainError
from hpctrain import RunConfig, ScalingConfig, SlurmConfig

def train(config):
    from mpi4py import MPI

    if "module" in config:
        __import__(config["module"])
    world, start, slope = MPI.COMM_WORLD, 0, 0.0
    if (checkpoint := hpctrain.get_checkpoint()) is not None:
        state = checkpoint.to_dict()
        start, slope = state["step"], state["slope"]
    points = [x / 60 for x in range(world.rank, 60, world.size)]
    for step in range(start, 4):
        gradient = world.allreduce(sum((slope * x - 3 * x) * x for x in points))
        # Rank 0 has left its report, so that checkpoint 2 is committed.
        if step == 2 and start == 0 and config.get("killed") == world.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        slope -= 0.02 * gradient
        state = Checkpoint.from_dict({"step": step + 1, "slope": slope})
        hpctrain.report({"slope": slope}, state if world.rank == 0 else None)
        while config.get("endless") and not hpctrain.should_stop():
            world.barrier()
            hpctrain.report({"slope": slope}, state if world.rank == 0 else None)
    seen = sorted(os.listdir("/")), [path for path in config["paths"] if os.path.exists(path)]
    return world.allgather((os.uname().nodename, os.getcwd(), *seen))

if __name__ == "__main__":
    storage, name = sys.argv[1:3]
    asked = json.loads(sys.argv[3])
    container = eval(asked["container"])
    result = DataParallelTrainer(
        train,
        train_loop_config={"paths": [], **asked.get("config", {})},
        scaling_config=ScalingConfig(
            num_workers=4, slurm=SlurmConfig(nodes=2, tasks_per_node=2, container=container)
        ),
        run_config=RunConfig(
            storage_path=storage, name=name, failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    slopes = [metrics["slope"] for metrics in result.metrics_history]
    print(json.dumps({"slopes": slopes, "ranks": result.return_value}))
"""


# No image here has it, every Linux does, and nobody mounts it.
OUTSIDE = "/etc/os-release"
IN_ALLOCATION = ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2")


@pytest.fixture
def work() -> Iterator[Path]:
    """Return a working directory that no runtime mounts by itself, with a space in its name."""
    folder = Path(tempfile.mkdtemp(prefix="hpctrain work ", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


def start(
    work: Path,
    cluster: VirtualCluster,
    image: Image,
    name: str,
    *before: str,
    container: str = "",
    **config: Any,
) -> subprocess.Popen[str]:
    """Start a script that calls fit() in a directory, with its runs beside it."""
    script = work / "train.py"
    script.write_text(SCRIPT)
    asked = {"container": container or f"Container(**{image.values})", "config": config}
    return subprocess.Popen(
        [*before, sys.executable, str(script), str(work / "runs"), name, json.dumps(asked)],
        env={**os.environ, **cluster.environ, **image.environ},
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def fit(*args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run such a script to its end."""
    process = start(*args, **options)
    try:
        printed, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, printed, errors)


def hpctrain(*words: str, cwd: Any, environ: Any) -> str:
    """Return what a command prints."""
    done = run_python("-m", "hpctrain.cli", *words, cwd=cwd, environ=environ, timeout_s=TIMEOUT_S)
    return done.stdout


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def processes_of(run: Path) -> list[str]:
    """Return the processes whose command line has a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(run) in command and path.parent.name != str(os.getpid()):
            found.append(command)
    return found


def assert_nothing_is_left(run: Path) -> None:
    deadline = time.monotonic() + 60
    while (left := processes_of(run)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def test_ranks_see_what_is_mounted_alone_and_learn_the_same_as_outside(
    virtual_slurm: VirtualCluster, image: Image, work: Path
) -> None:
    paths = [OUTSIDE, str(work / "train.py")]
    outside = answer(fit(work, virtual_slurm, image, "outside", container="None", paths=paths))
    inside = answer(fit(work, virtual_slurm, image, "inside", paths=paths))
    assert inside["slopes"] == outside["slopes"]
    assert len(inside["slopes"]) == 4
    assert [seen for *_, seen in outside["ranks"]] == [paths] * 4
    assert [seen for *_, seen in inside["ranks"]] == [paths[1:]] * 4
    hosts = [host for host, *_ in inside["ranks"]]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
    assert {cwd for _, cwd, *_ in inside["ranks"]} == {str(work)}
    commands = {"cwd": work, "environ": {**virtual_slurm.environ, **image.environ}}
    difference = hpctrain("diff", "runs/outside", "runs/inside", **commands)
    assert "container.runtime: - -> apptainer" in difference
    assert "container: " not in difference
    hpctrain("replay", "runs/inside", "--name", "again", **commands)
    hpctrain("wait", "runs/again", **commands)
    again = Result.from_path(work / "runs/again")
    assert [metrics["slope"] for metrics in again.metrics_history] == inside["slopes"]
    assert (work / "runs/again/logs/1/container.out").is_file()


def test_a_killed_rank_resumes_in_the_container_and_nothing_is_left(
    virtual_slurm: VirtualCluster, image: Image, work: Path
) -> None:
    straight = answer(fit(work, virtual_slurm, image, "straight", *IN_ALLOCATION))
    done = fit(work, virtual_slurm, image, "killed", *IN_ALLOCATION, killed=3)
    resumed = answer(done)
    assert resumed["slopes"][-1] == straight["slopes"][-1]
    run = work / "runs/killed"
    history = subprocess.run(
        [sys.executable, "-m", "hpctrain.cli", "history", str(run)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert "2 attempts, 1 restart" in history.stdout
    # Its second node, whichever nodes the job has.
    assert f"rank 3 on {resumed['ranks'][3][0]}" in history.stdout
    assert "from      checkpoint 000002" in history.stdout
    assert (run / "logs/1/container.out").is_file()
    # It has started on these nodes before.
    assert (run / "logs/2").is_dir()
    assert not (run / "logs/2/container.out").exists()
    assert_nothing_is_left(run)


def test_a_cancelled_run_leaves_nothing(
    virtual_slurm: VirtualCluster, image: Image, work: Path
) -> None:
    process = start(work, virtual_slurm, image, "cancelled", endless=True)
    run = work / "runs/cancelled"
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not list(run.glob("checkpoints/0*")) and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        assert len(processes_of(run)) >= 4
        subprocess.run(
            [sys.executable, "-m", "hpctrain.cli", "cancel", str(run)],
            env={**os.environ, **virtual_slurm.environ},
            check=True,
            timeout=TIMEOUT_S,
        )
        _, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert "RunStoppedError" in errors
    assert_nothing_is_left(run)


CANNOT_START = {
    "no-image": (
        {"image": "/nowhere/an image.sif"},
        "/nowhere/an image.sif does not start with apptainer on 2 of 2 nodes",
    ),
    "no-runtime": (
        {"runtime": "singularity"},
        "singularity is not on the PATH of compute nodes. Load its module with "
        "SlurmConfig(setup=['module load singularity'])",
    ),
    "no-mount": (
        {"mounts": ["/usr", "/nowhere/data"]},
        "mount source /nowhere/data doesn't exist",
    ),
    "no-hpctrain": (
        {"python": "/opt/bare", "mounts": ["/usr", sys.prefix, sys.base_prefix]},
        "cannot import hpctrain (ModuleNotFoundError: No module named 'hpctrain'). Install it in "
        "the image: /opt/bare -m pip install 'hpctrain==",
    ),
    "no-python": (
        {"python": "/usr/bin/true"},
        "starts with apptainer, but /usr/bin/true in it does not answer as a Python does on 2 of 2",
    ),
    "no-pyxis": ({"runtime": "pyxis"}, "This srun has no Pyxis"),
}


@pytest.mark.parametrize("case", sorted(CANNOT_START))
def test_a_container_that_cannot_be_used_says_why_before_ranks_start(
    virtual_slurm: VirtualCluster, image: Image, work: Path, case: str
) -> None:
    changes, why = CANNOT_START[case]
    bare = image.path / "opt/bare"
    # Isolated, and without the packages of its environment.
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    container = f"Container(**{ {**image.values, **changes} })"
    done = fit(work, virtual_slurm, image, "refused", *IN_ALLOCATION, container=container)
    assert done.returncode == LaunchError.exit_code, done.stdout + done.stderr
    assert why in done.stderr
    assert not (work / "runs/refused/logs/1/launcher.out").exists()
    assert_nothing_is_left(work / "runs/refused")


def test_a_package_that_is_outside_alone_fails_the_run_at_once(
    virtual_slurm: VirtualCluster, image: Image, work: Path
) -> None:
    packages, nothing = work / "site-packages", work / "nothing"
    packages.mkdir()
    nothing.mkdir()
    (packages / "only_outside.py").touch()
    path = f"{packages}:{os.environ.get('PYTHONPATH', '')}"
    outside = replace(image, environ={**image.environ, "PYTHONPATH": path})
    mounts = [*image.values["mounts"], f"{nothing}:{packages}"]
    container = f"Container(**{ {**image.values, 'mounts': mounts} })"
    done = fit(
        *(work, virtual_slurm, outside, "module", *IN_ALLOCATION),
        container=container,
        module="only_outside",
    )
    assert done.returncode == WorkerError.exit_code, done.stdout + done.stderr
    assert f"{sys.executable} has no only_outside." in done.stderr
    assert len(Result.from_path(work / "runs/module").attempts) == 1
    # Its image is mended, so to speak: the same name goes on.
    assert len(answer(fit(work, virtual_slurm, image, "module", *IN_ALLOCATION))["slopes"]) == 4


@pytest.mark.parametrize("has_image", [True, False])
def test_the_doctor_tries_the_container_on_nodes(
    virtual_slurm: VirtualCluster, image: Image, work: Path, has_image: bool
) -> None:
    (work / "train.py").write_text(SCRIPT)
    (work / "runs").mkdir()
    changes = {} if has_image else {"image": "/nowhere/an image.sif"}
    asked = {"container": f"Container(**{ {**image.values, **changes} })"}
    words = ["--json", "train.py", str(work / "runs"), "one", json.dumps(asked)]
    done = subprocess.run(
        [sys.executable, "-m", "hpctrain.cli", "doctor", *words],
        env={**os.environ, **virtual_slurm.environ, **image.environ},
        cwd=work,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == (0 if has_image else 3), done.stdout + done.stderr
    found = json.loads(done.stdout)["findings"]
    (of_container,) = (each for each in found if each["check"] == "container")
    if has_image:
        assert of_container["what"] == (
            f"{image.path} starts with apptainer, and has what ranks import"
        )
        worlds = [each["what"] for each in found if each["check"] == "MPI"]
        assert any("srun --mpi=pmi2: one world of 2 ranks, MPICH" in what for what in worlds)
    else:
        assert of_container["level"] == "error"
        assert "does not start with apptainer on 2 of 2 nodes" in of_container["what"]
        assert not [each for each in found if each["check"] == "MPI"]
    assert not list((work / "runs").iterdir())
