"""Some ranks have returned, and another one is still in its function: said, with its stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.execute.step_launcher import find_mpiexec
from hpctrain.timeouts import LEFT_BEHIND_S
from tests.waiting import wait_until

pytestmark = pytest.mark.mpi
# Besides the time after which it is said: a busy machine.
PATIENCE_S = 60.0

SCRIPT = """
import pathlib, sys, time
import hpctrain
from hpctrain import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def save_alone(how):
    if how == "torch":
        import torch.distributed
        torch.distributed.barrier()
    elif how == "mpi":
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()
    else:
        while not pathlib.Path("released").exists():
            time.sleep(0.05)

def train(config):
    hpctrain.report({"step": 1})
    if hpctrain.get_context().get_world_rank() == 0:
        save_alone(config["how"])

if __name__ == "__main__":
    how, timeout = sys.argv[1], sys.argv[2]
    if how == "torch":
        from hpctrain.torch import TorchTrainer as Trainer
    else:
        Trainer = DataParallelTrainer
    Trainer(
        train,
        train_loop_config={"how": how},
        scaling_config=ScalingConfig(num_workers=int(sys.argv[3])),
        run_config=RunConfig(
            name="run",
            storage_path=".",
            failure_config=FailureConfig(hang_timeout_s=float(timeout) if timeout else None),
        ),
    ).fit()
"""


class Started:
    def __init__(self, folder: Path, argv: list[str], launcher: str) -> None:
        (folder / "train.py").write_text(SCRIPT)
        self.folder = folder
        self._output = folder / "output"
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(
                argv,
                cwd=folder,
                env={**os.environ, "HPCTRAIN_LAUNCHER": launcher},
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
            )

    def stalled(self) -> str:
        """Return what status.json says of it, and how long after the report it was written."""
        status = self.folder / "run/status.json"

        def stalled() -> str:
            return json.loads(status.read_text()).get("stalled", "") if status.exists() else ""

        timeout_s = LEFT_BEHIND_S + PATIENCE_S / 2
        return wait_until(stalled, "a word", timeout_s=timeout_s, process=self.process)

    def wait_for(self, text: str) -> None:
        """Wait until it is on the screen."""
        wait_until(lambda: text in self._output.read_text(), self._output.read_text)

    def end(self) -> tuple[int, str]:
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, self._output.read_text()


@pytest.fixture
def start(tmp_path: Path) -> Any:
    started = []

    def start(how: str, timeout: str, *, ranks: int, spmd: bool = False) -> Started:
        argv = [sys.executable, "train.py", how, timeout, str(ranks)]
        if spmd:
            argv = [find_mpiexec("auto").program, "-n", str(ranks), *argv]
        started.append(Started(tmp_path, argv, "" if spmd else "local"))
        return started[-1]

    yield start
    for run in started:
        run.process.kill()
        run.process.communicate()


@pytest.mark.parametrize("how", ["torch", pytest.param("mpi", marks=pytest.mark.long)])
def test_a_collective_of_one_rank_is_named_with_its_stack_and_ended_by_the_timeout(
    start: Any, how: str
) -> None:
    run = start(how, "9", ranks=4)
    stalled = run.stalled()
    first, *rest = stalled.splitlines()
    assert first.startswith(
        f"ranks 1-3 have returned, but rank 0 on {os.uname().nodename} is still in the training "
        "function (in phase training, after report 1, no progress since "
    )
    if how == "torch":
        # Of MPI there is no frame of Python's.
        assert "move the call out of conditions such as 'if rank == 0'" in rest[0]
    assert "  After 9 s without progress it is ended: FailureConfig(hang_timeout_s=9)." in rest
    frames = rest[rest.index("  Stack of rank 0, the most recent call first:") + 1 :]
    assert frames[-2].endswith("in save_alone")
    assert frames[-1].endswith("in train"), "frames of hpctrain are left out"
    status, output = run.end()
    assert status != 0
    assert f"hpctrain: run: {stalled}\n" in output
    assert output.count("have returned, but rank 0") == 1
    (event,) = [
        event
        for event in map(json.loads, (run.folder / "run/ledger.jsonl").read_text().splitlines())
        if event["event"] == "left-behind"
    ]
    assert (event["ranks"], event["what"]) == ([0], first)


@pytest.mark.parametrize("spmd", [False, True], ids=["local", "spmd"])
def test_work_of_one_rank_is_named_and_let_be(start: Any, spmd: bool) -> None:
    run = start("work", "", ranks=2, spmd=spmd)
    stalled = run.stalled()
    assert stalled.startswith("rank 1 has returned, but rank 0 on ")
    assert "waits for other ranks" not in stalled
    expected = "Ranks that hpctrain did not start" if spmd else "hang_timeout_s=...) is not set"
    assert expected in stalled
    assert "in save_alone" in stalled
    # What is said no longer holds once it goes on.
    run.wait_for("rank 1 has returned, but rank 0")
    (run.folder / "released").touch()
    status, output = run.end()
    assert status == 0, output
    content = json.loads((run.folder / "run/status.json").read_text())
    assert (content["state"], content["stalled"]) == ("finished", "")
