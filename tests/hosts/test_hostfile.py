"""Ranks on hosts that a file names, with the promises of a Slurm allocation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from tests.runs import reported

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))
TIMEOUT_S = 120.0
pytestmark = [pytest.mark.slurm, pytest.mark.mpi]

SCRIPT = """
import argparse, os, time
import hpctrain
import hpctrain.collective
from hpctrain import (
    Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, SlurmConfig,
)

def train(config):
    checkpoint = hpctrain.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"step": 0, "weight": 1.0}
    context = hpctrain.get_context()
    while state["step"] < config["steps"]:
        state = {"step": state["step"] + 1, "weight": state["weight"] * 1.0001 + state["step"]}
        hpctrain.collective.barrier(timeout_s=60)
        time.sleep(config["pause"])   # a step of work
        saved = Checkpoint.from_dict(state) if context.get_world_rank() == 0 else None
        hpctrain.report(state, saved)
    return [context.get_world_size(), os.environ.get("OF_THE_USER"), state["weight"]]

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--spare", type=int, default=0)
    parser.add_argument("--mpi", default="auto")
    args = parser.parse_args()
    result = DataParallelTrainer(
        train,
        train_loop_config={"steps": args.steps, "pause": args.pause},
        scaling_config=ScalingConfig(
            num_workers=args.workers, slurm=SlurmConfig(spare_nodes=args.spare, mpi=args.mpi)
        ),
        run_config=RunConfig(
            name=args.name,
            storage_path="runs",
            failure_config=FailureConfig(max_failures=1, node_timeout_s=6),
        ),
    ).fit()
"""


@pytest.fixture(scope="module", autouse=True)
def written(machines: Any) -> None:
    (machines.path / "train.py").write_text(SCRIPT)
    (machines.path / "hosts").write_text("node1 slots=2\nnode2 slots=2\nnode3 slots=2\n")


def begin(machines: Any, name: str, *options: str, **environ: str) -> subprocess.Popen[str]:
    hosts = [] if "PBS_NODEFILE" in environ else ["--hostfile", "hosts"]
    argv = [HPCTRAIN, "run", *hosts, "train.py", name, *options]
    return machines.start(argv, machines.variables(**environ), machines.path / f"{name}.out")


def end(machines: Any, name: str, process: subprocess.Popen[str]) -> Result:
    status = process.wait(TIMEOUT_S)
    said = (machines.path / f"{name}.out").read_text()
    assert status == 0, said
    return Result.from_path(machines.path / "runs" / name)


def checkpoints(machines: Any, name: str) -> list[Path]:
    return list((machines.path / "runs" / name / "checkpoints").glob("0*"))


def causes(machines: Any, name: str) -> list[str]:
    events = read_events(RunPaths(machines.path / "runs" / name))
    return [event["cause"] for event in events if event["event"] == "attempt-ended"]


def weight(steps: int) -> float:
    value = 1.0
    for step in range(steps):
        value = value * 1.0001 + step
    return value


def test_digits_has_the_losses_of_a_laptop(machines: Any, tmp_path: Path) -> None:
    options = ["--epochs=2", f"--storage={tmp_path}", "--workers=4"]
    here = {**os.environ, "HPCTRAIN_LAUNCHER": "local"}
    laptop = [sys.executable, str(DIGITS), "--name=laptop", *options]
    subprocess.run(laptop, env=here, check=True, capture_output=True, timeout=TIMEOUT_S)
    log = tmp_path / "hosts.out"
    argv = [HPCTRAIN, "run", "--hostfile", "hosts", str(DIGITS), "--name=hosts", *options]
    assert machines.start(argv, machines.variables(), log).wait(TIMEOUT_S) == 0, log.read_text()

    def losses(name: str) -> list[float]:
        return [metrics["loss"] for metrics in reported(tmp_path / name)]

    assert losses("hosts") == losses("laptop")
    assert Result.from_path(tmp_path / "hosts").nodes == ("node1", "node2")


def test_a_job_of_pbs_is_found_by_its_node_file(machines: Any) -> None:
    node_file = machines.path / "7.head"
    node_file.write_text("node1\nnode1\nnode3\nnode3\n")
    process = begin(machines, "pbs", "--workers=4", PBS_NODEFILE=str(node_file), OF_THE_USER="a b")
    result = end(machines, "pbs", process)
    assert result.nodes == ("node1", "node3")
    assert result.return_value == [4, "a b", weight(3)]


@pytest.mark.parametrize("mpi", ["mpiexec.openmpi", "prterun"])
def test_open_mpi_reaches_hosts_and_brings_the_environment(
    machines: Any, mpi: str, open_mpi_5: Path
) -> None:
    program = shutil.which(mpi) if mpi != "prterun" else str(open_mpi_5 / "bin" / "mpiexec")
    library = "libmpi.so.40" if mpi != "prterun" else str(open_mpi_5 / "lib" / "libmpi.so.40")
    assert program is not None
    name = f"by-{mpi}"
    process = begin(
        machines, name, f"--mpi={program}", MPI4PY_LIBMPI=library, OF_THE_USER="a 'b' $c"
    )
    result = end(machines, name, process)
    assert result.nodes == ("node1", "node2", "node3")
    assert result.return_value == [6, "a 'b' $c", weight(3)]


def test_ranks_start_again_after_one_was_killed(machines: Any) -> None:
    process = begin(machines, "killed", "--steps=12", "--pause=0.2")
    machines.await_that(lambda: checkpoints(machines, "killed"), "a checkpoint")
    victim = machines.processes("node2", "hpctrain.worker.main")[0]
    machines.cluster.run_on("node2", ["kill", "-9", str(victim)])
    result = end(machines, "killed", process)
    assert result.return_value == [6, None, weight(12)]
    first, second = causes(machines, "killed")
    assert first.startswith("WorkerError: rank 2 of 6 on node2 failed without an exception")
    assert second == "finished"


def test_a_run_goes_on_with_a_spare_host_when_one_is_lost(machines: Any) -> None:
    process = begin(machines, "lost", "--steps=20", "--pause=0.2", "--workers=4", "--spare=1")
    machines.await_that(lambda: checkpoints(machines, "lost"), "a checkpoint")
    machines.power_off("node2")
    try:
        result = end(machines, "lost", process)
        # What reaches for the host that is gone does not stay behind either.
        assert not machines.processes("node1", "-x node2")
    finally:
        machines.power_on("node2")
    assert result.nodes == ("node1", "node3")
    assert result.return_value == [4, None, weight(20)]
    first, second = causes(machines, "lost")
    assert first.startswith("NodeLostError: node node2 is lost: silent.")
    assert second == "finished"


def test_nothing_stays_on_any_host_when_the_executor_is_killed(machines: Any) -> None:
    process = begin(machines, "orphans", "--steps=1000", "--pause=0.1")
    machines.await_that(lambda: checkpoints(machines, "orphans"), "a checkpoint")
    for pid in machines.processes("node1", "run --hostfile hosts train.py orphans"):
        machines.cluster.run_on("node1", ["kill", "-9", str(pid)])
    process.wait(TIMEOUT_S)
    for node in ("node1", "node2", "node3"):
        for what in ("hpctrain.worker.main", "hpctrain.execute.agent", "hydra_pmi_proxy"):
            machines.await_that(
                lambda node=node, what=what: not machines.processes(node, what),
                f"the end of {what} on {node}",
            )
    shown = machines.cluster.run_on(
        "node1", [HPCTRAIN, "status", "runs/orphans"], cwd=machines.path
    )
    assert "lost" in shown.stdout


def test_too_few_hosts_are_told_before_anything_starts(machines: Any) -> None:
    process = begin(machines, "many", "--workers=7")
    assert process.wait(TIMEOUT_S) == 2
    said = (machines.path / "many.out").read_text()
    assert "hpctrain.errors.ConfigError: num_workers=7 " in said, said
    assert "hold 2(x3) of them. Use num_workers=6 or less" in said
    assert not (machines.path / "runs" / "many").exists()


def test_runs_in_the_background_go_one_after_another(machines: Any) -> None:
    (machines.path / "several.py").write_text(
        SCRIPT.partition("if __name__")[0]
        + """
def submit(name):
    return DataParallelTrainer(
        train,
        train_loop_config={"steps": 3, "pause": 0.1},
        scaling_config=ScalingConfig(num_workers=6),
        run_config=RunConfig(name=name, storage_path="runs", verbose=0),
    ).submit()

handles = [submit("first"), submit("second")]
done, running = hpctrain.wait(handles, timeout_s=100)
print([handle.name for handle in done], running, handles[1].result().metrics["step"])
"""
    )
    log = machines.path / "several.out"
    argv = [HPCTRAIN, "run", "--hostfile", "hosts", "several.py"]
    # The turns in the background are nobody else's.
    environ = machines.variables(TMPDIR=str(machines.path))
    assert machines.start(argv, environ, log).wait(TIMEOUT_S) == 0, log.read_text()
    assert log.read_text() == "['first', 'second'] [] 3\n"
    first, second = (Result.from_path(machines.path / "runs" / n) for n in ("first", "second"))
    assert first.nodes == second.nodes == ("node1", "node2", "node3")
    assert first.attempts[0].ended_at < second.attempts[0].started_at
