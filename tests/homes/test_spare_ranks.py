"""Ranks that wait, in a step of their own, until the attempt before theirs has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until
from tests.waiting_jobs import OF_STEP, Job, held, step_of

# Starts of ranks on two nodes, on a machine that is busy.
pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.timeout(240)]

# They differ from step to step, and from process to process.
_OF_STEP = {"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_PORT"}
_OF_STEP |= {"SLURM_STEP_LAUNCHER_PORT", "SLURM_TASK_PID", "HPCTRAIN_STEP"}


def _state(rank: dict[str, Any]) -> dict[str, Any]:
    """Return what a rank has from its step, but for what tells steps apart."""
    variables = {name: v for name, v in rank["variables"].items() if name not in _OF_STEP}
    step = rank["step"].partition(".")[2]
    cgroup = rank["cgroup"].replace(f"step_{step}", "step")
    variables = {name: f"{value:.200}" for name, value in variables.items()}
    return {**variables, "cgroup": cgroup, "cpus": rank["cpus"], "of": rank["limits"]}


# Steps that overlap share the memory and the GPUs of their job.
@pytest.mark.parametrize("options", [(), ("--mem=1500", "--gpus-per-node=2")])
def test_ranks_that_have_waited_are_as_those_of_the_first_step(
    virtual_slurm: VirtualCluster, tmp_path: Path, options: tuple[str, ...]
) -> None:
    job = Job(
        tmp_path,
        virtual_slurm,
        dies=1,
        restarts=2,
        settle_s=0.1,
        options=options,
        use_gpu=bool(options),
    )
    first = job.ranks(1)
    (step,) = {step_of(pid) for pid in job.waiting()}
    assert step != first[0]["step"]
    (tmp_path / "go-1").touch()
    second = job.ranks(2)
    assert [rank["step"] for rank in second] == [step] * 4
    for after, before in zip(second, first, strict=True):
        assert _state(after) == _state(before)
        assert ("CUDA_VISIBLE_DEVICES" in after["variables"]) == bool(options)
    for rank in second:
        assert "hpctrain.worker.fork_server" in rank["parent"]
    # Once more: each attempt uses up those that have waited for it.
    (third,) = {step_of(pid) for pid in job.waiting()}
    (tmp_path / "go-2").touch()
    assert {rank["step"] for rank in job.ranks(3)} == {third}
    # None wait for an attempt that the budget does not allow.
    (tmp_path / "go-3").touch()
    assert job.end().split()[-1] == "3"
    logs = tmp_path / "run/logs"
    assert sorted(path.name for path in logs.iterdir()) == ["1", "2", "3"]
    assert not [*logs.glob("*/spare*")]
    assert all((logs / attempt / "launcher.out").exists() for attempt in "123")
    wait_until(lambda: not job.left(*OF_STEP), "processes of a step are left")


def test_a_step_that_ends_while_its_ranks_wait_is_replaced_by_a_new_one(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    job = Job(tmp_path, virtual_slurm, dies=1, restarts=2, settle_s=0.1)
    job.ranks(1)
    (step,) = {step_of(pid) for pid in job.waiting()}
    subprocess.run(["scancel", step], env=job.environ, check=True, timeout=60)
    # Four ranks, their clients, and two servers of this attempt.
    wait_until(lambda: len(job.left(*OF_STEP)) == 10, lambda: str(job.left(*OF_STEP)))
    (tmp_path / "go-1").touch()
    second = job.ranks(2)
    assert step not in {rank["step"] for rank in second}
    # They have not put an end to it: the next ones wait again.
    (third,) = {step_of(pid) for pid in job.waiting()}
    (tmp_path / "go-2").touch()
    assert {rank["step"] for rank in job.ranks(3)} == {third}
    (tmp_path / "go-3").touch()
    printed = job.end()
    assert "ranks start in a new step, not in the one that waited: their step has ended" in printed
    assert printed.split()[-1] == "3"


def test_ranks_that_wait_leave_with_an_executor_that_is_killed(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    job = Job(tmp_path, virtual_slurm, restarts=2, settle_s=0.1, outlived=True)
    try:
        job.ranks(1)
        steps = {step_of(pid) for pid in job.waiting()}
        (executor,) = job.left(str(tmp_path / "wait.py"))
        os.kill(executor, signal.SIGKILL)
        wait_until(lambda: not job.left(*OF_STEP), lambda: f"left: {job.left(*OF_STEP)}")

        def shown() -> str:
            asked = ["squeue", "--steps", "--noheader", "--format=%i"]
            done = subprocess.run(
                asked, env=job.environ, capture_output=True, text=True, timeout=60
            )
            return done.stdout

        wait_until(lambda: not steps & set(shown().split()), shown)
    finally:
        (tmp_path / "over").touch()
        job.process.communicate(timeout=60)


def test_ranks_that_wait_leave_when_the_run_ends(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    job = Job(tmp_path, virtual_slurm, dies=1, restarts=2, settle_s=0.1)
    job.ranks(1)
    job.waiting()
    (tmp_path / "go-1").touch()
    job.ranks(2)
    job.waiting()
    (tmp_path / "go").touch()
    (tmp_path / "go-2").touch()
    job.ranks(3)
    (tmp_path / "go-3").touch()
    assert job.end().split()[-1] == "3"
    wait_until(lambda: not job.left(*OF_STEP), "processes of a step are left")


def test_restarts_from_ranks_that_waited_leave_the_executor_and_the_agents_as_they_were(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    restarts = 5
    job = Job(tmp_path, virtual_slurm, dies=1, restarts=restarts, settle_s=0.1)
    found = []
    for attempt in range(1, restarts + 1):
        job.ranks(attempt)
        job.waiting()
        # Those of this attempt, and those that wait.
        wait_until(lambda: len(job.left(*OF_STEP)) == 20, lambda: str(job.left(*OF_STEP)))
        executor = job.left(str(tmp_path / "wait.py"))
        agents = job.left("hpctrain.execute.agent")
        found.append({pid: held(pid) for pid in (*executor, *agents)})
        (tmp_path / f"go-{attempt}").touch()
    job.ranks(restarts + 1)
    (tmp_path / f"go-{restarts + 1}").touch()
    assert job.end().split()[-1] == str(restarts + 1)
    second, last = found[1], found[-1]
    assert len(second) == 3
    assert {pid: number for pid, (number, _) in last.items()} == {
        pid: number for pid, (number, _) in second.items()
    }
    for pid, (_, pages) in last.items():
        assert pages < second[pid][1] + 512


# The training begins anew after the restart, so its losses are those of a run without one.
TRAINS = """
import json, sys
from hpctrain import FailureConfig, RunConfig, ScalingConfig
from hpctrain.execute.spare_ranks import SpareRanks
from hpctrain.torch import TorchTrainer

SpareRanks.settle_s = 0.1

def train(config):
    import os, signal, time
    from pathlib import Path
    import torch
    from torch import distributed, nn
    import hpctrain, hpctrain.torch

    context = hpctrain.get_context()
    rank, attempt = context.get_world_rank(), context.world.attempt
    torch.manual_seed(3)
    model = hpctrain.torch.prepare_model(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 1)))
    torch.manual_seed(rank)
    losses = []
    for _ in range(5):
        loss = model(torch.randn(64, 32)).square().mean()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.01 * weight.grad
                weight.grad = None
        losses.append(loss.item().hex())
    here = Path(config["here"])
    (here / f"here-{attempt}-{rank}").touch()
    while config["dies"] and attempt == 1:
        if rank == 2 and (here / "go").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    everybody = [None] * distributed.get_world_size()
    distributed.all_gather_object(everybody, [losses, torch.get_num_threads()])
    waited = any(word.startswith("--spare=") for word in sys.orig_argv)
    return [everybody, waited, attempt]

storage, dies = sys.argv[1], sys.argv[2] == "1"
answer = TorchTrainer(
    train,
    train_loop_config={"dies": dies, "here": storage},
    scaling_config=ScalingConfig(num_workers=4),
    run_config=RunConfig(
        storage_path=storage, name="run", verbose=0,
        failure_config=FailureConfig(max_failures=int(dies)),
    ),
).fit().return_value
with open(f"{storage}/answer.json", "w") as file:
    json.dump(answer, file)
"""


def test_losses_of_ranks_that_have_waited_are_the_same_to_the_last_bit(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    answers = []
    for dies in ("0", "1"):
        here = tmp_path / dies
        here.mkdir()
        job = Job(here, virtual_slurm, code=TRAINS, words=(str(here), dies))
        if dies == "1":
            wait_until(
                lambda folder=here: len([*folder.glob("here-1-*")]) == 4,
                process=job.process,
                timeout_s=120,
            )
            job.waiting()
            (here / "go").touch()
        job.end()
        answers.append(json.loads((here / "answer.json").read_text()))
    assert [waited for _, waited, _ in answers] == [False, True]
    assert [attempt for *_, attempt in answers] == [1, 2]
    assert answers[0][0] == answers[1][0]
