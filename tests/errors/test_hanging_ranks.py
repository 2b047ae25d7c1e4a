"""A rank that hangs is named, with its phase, since when, and its stack; then all start again."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpctrain import (
    Backend,
    BackendConfig,
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    LaunchError,
    Result,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    WorkerGroup,
    WorkerHangError,
)
from hpctrain.backend import BackendContext
from hpctrain.execute.examine import find_py_spy
from hpctrain.testing.slurm import VirtualCluster
from tests import runs
from tests.processes import run_python

pytestmark = pytest.mark.mpi
TIMEOUT_S = 3.0
# The start of ranks, the time of a hang, the look at them, and their end, on a busy machine.
SECONDS = 60


def fit(
    train: Any, tmp_path: Path, *, num_workers: int = 3, max_failures: int = 0, **failure: Any
) -> Result:
    budget = FailureConfig(max_failures=max_failures, **{"hang_timeout_s": TIMEOUT_S, **failure})
    return runs.fit(train, tmp_path, num_workers=num_workers, failure_config=budget)


def hang(how: str) -> Any:
    """Return a function whose rank 1 hangs in the third step of its first attempt."""

    def train() -> int:
        import ctypes
        import os
        import signal

        import hpctrain
        import hpctrain.collective

        def spin_in_step() -> None:
            while True:
                pass

        context = hpctrain.get_context()
        rank, attempt = context.get_world_rank(), context.world.attempt
        checkpoint = hpctrain.get_checkpoint()
        first = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
        for step in range(first, 4):
            if step == 2:
                # Rank 0 comes here when its checkpoint is committed: all reports have arrived.
                hpctrain.collective.barrier(timeout_s=600)
            if step == 2 and rank == 1 and attempt == 1:
                if how == "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                elif how == "python loop":
                    spin_in_step()
                elif how == "holds the lock":
                    ctypes.PyDLL(None).sleep(600)
            hpctrain.collective.barrier(timeout_s=600)
            saved = Checkpoint.from_dict({"step": step}) if rank == 0 else None
            hpctrain.report({"step": step}, saved)
        return attempt

    return train


def stacks(tmp_path: Path) -> dict[int, str]:
    folder = tmp_path / "run/stacks/1"
    return {int(path.stem[-5:]): path.read_text() for path in folder.iterdir()}


@pytest.mark.timeout(SECONDS)
def test_a_stopped_rank_is_named_with_the_state_of_its_process(tmp_path: Path) -> None:
    with pytest.raises(WorkerHangError) as caught:
        fit(hang("stopped"), tmp_path)
    message = str(caught.value)
    assert (
        f"rank 1 of 3 on {os.uname().nodename} hangs in phase training, after report 2: "
        "no progress for" in message
    )
    assert "its process is stopped (SIGSTOP" in message
    assert "2 other ranks in phase training, after report 2, waiting for others" in message
    assert "checkpoints/000002" in message
    assert caught.value.rank == 1
    written = stacks(tmp_path)
    assert set(written) == {0, 1, 2}
    assert "state: T (stopped)" in written[1]
    assert "waits in the kernel in: " in written[1]
    assert "py-spy:\n" in written[1]
    assert "wait_barrier" in written[0]
    failure = json.loads((tmp_path / "run/failures/1/rank-00001.json").read_text())
    assert failure["phase"] == "training"
    assert "is stopped" in failure["message"]
    result = Result.from_path(tmp_path / "run")
    assert isinstance(result.error, WorkerHangError)
    assert result.error.rank == 1


@pytest.mark.parametrize(
    ("how", "shown"),
    [("python loop", "in spin_in_step"), ("holds the lock", "holds Python's lock (GIL)")],
)
def test_a_rank_that_computes_for_ever_is_named_and_not_those_that_wait_for_it(
    tmp_path: Path, how: str, shown: str
) -> None:
    with pytest.raises(WorkerHangError, match=r"^rank 1 of 3 .* hangs") as caught:
        fit(hang(how), tmp_path)
    assert shown in str(caught.value)
    assert set(stacks(tmp_path)) == {0, 1, 2}


def test_ranks_that_wait_for_one_that_has_left_are_named_and_it_is_said_that_it_left(
    tmp_path: Path,
) -> None:
    def train() -> None:
        import hpctrain
        from hpctrain.worker.context import active_worker

        def collective_of_a_framework() -> None:
            active_worker("train()").comm.bcast(None)

        hpctrain.report({"step": 0})
        if hpctrain.get_context().get_world_rank() != 0:
            collective_of_a_framework()

    with pytest.raises(WorkerHangError) as caught:
        fit(train, tmp_path)
    message = str(caught.value)
    assert message.startswith("ranks 1 (")
    assert "waits for other ranks, which may have left" in message
    assert "1 other rank returned after report 1" in message
    assert "collective_of_a_framework" in message


@pytest.mark.parametrize("call", ["barrier", "broadcast_from_rank_zero"])
def test_a_collective_that_a_rank_returned_without_is_an_error_at_once(
    tmp_path: Path, call: str
) -> None:
    def train() -> None:
        import hpctrain
        import hpctrain.collective

        if hpctrain.get_context().get_world_rank() == 1:
            return
        if call == "barrier":
            hpctrain.collective.barrier(timeout_s=600)
        else:
            hpctrain.collective.broadcast_from_rank_zero("a name", timeout_s=600)

    with pytest.raises(
        TrainingFailedError, match=rf"rank 1 returned, but rank \d waits .* {call}\(\)"
    ):
        fit(train, tmp_path)


def test_a_broadcast_without_all_ranks_ends_in_time(tmp_path: Path) -> None:
    def train() -> None:
        import time

        import hpctrain
        import hpctrain.collective

        if hpctrain.get_context().get_world_rank() == 1:
            time.sleep(600)  # work that the others do not wait for
        hpctrain.collective.broadcast_from_rank_zero("a name", timeout_s=0.5)

    message = r"waited 0\.5 s in broadcast_from_rank_zero\(\), and not all 3 ranks called it"
    with pytest.raises(TrainingFailedError, match=message):
        fit(train, tmp_path)


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_native_stacks_tell_who_is_in_a_collective_of_mpi(tmp_path: Path) -> None:
    def train() -> None:
        import time

        from mpi4py import MPI

        import hpctrain

        hpctrain.report({"step": 0})
        if hpctrain.get_context().get_world_rank() == 1:
            time.sleep(600)
        MPI.COMM_WORLD.Barrier()

    with pytest.raises(WorkerHangError, match=r"^rank 1 of 3 .* hangs") as caught:
        fit(train, tmp_path)
    assert "2 other ranks in phase training, after report 1, waiting for others" in str(
        caught.value
    )
    assert "MPI_Barrier" in stacks(tmp_path)[0]


def test_after_a_hang_the_ranks_start_again_from_the_newest_checkpoint(tmp_path: Path) -> None:
    result = fit(hang("stopped"), tmp_path, num_workers=2, max_failures=1)
    assert result.return_value == 2
    assert [m["step"] for m in result.metrics_history] == [0, 1, 2, 3]
    assert "hangs in phase training" in str(result.attempts[0].cause)


def test_without_a_timeout_nothing_ends_but_the_stacks_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpctrain.timeouts.SUSPICIOUS_SILENCE_S", 2.0)
    released = tmp_path / "released"

    def train() -> None:
        import time

        import hpctrain
        import hpctrain.collective

        hpctrain.report({"step": 0})
        if hpctrain.get_context().get_world_rank() == 1:
            while not released.exists():
                time.sleep(0.05)
        hpctrain.collective.barrier(timeout_s=600)
        hpctrain.report({"step": 1})

    seen = []

    def watch() -> None:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            status = tmp_path / "run/status.json"
            stalled = json.loads(status.read_text())["stalled"] if status.exists() else ""
            if stalled:
                seen.append(stalled)
                break
            time.sleep(0.1)
        released.touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = fit(train, tmp_path, hang_timeout_s=None)
    watcher.join()
    assert result.state == "finished"
    assert len(result.attempts) == 1
    assert seen, "status.json says who makes no progress"
    assert seen[0].startswith("rank 1 of 3")
    assert result.status.stalled == ""
    assert set(stacks(tmp_path)) == {0, 1, 2}
    assert "hang_timeout_s=...) is not set" in seen[0]


def test_heartbeats_are_progress(tmp_path: Path) -> None:
    def train() -> str:
        import time

        import hpctrain

        hpctrain.report({"step": 0})
        deadline = time.monotonic() + 6.0
        while time.monotonic() < deadline:
            hpctrain.heartbeat()
            time.sleep(0.01)
        return "validated"

    assert fit(train, tmp_path, num_workers=2).return_value == "validated"


@dataclass(frozen=True, kw_only=True)
class HangingConfig(BackendConfig):
    """Of a backend whose set-up never ends on rank 1."""

    @property
    def backend_cls(self) -> type[Backend]:
        class HangingBackend(Backend):
            def on_start(self, context: BackendContext, config: BackendConfig) -> None:
                if context.world.world_rank == 1:
                    threading.Event().wait()

        return HangingBackend


def test_a_backend_that_does_not_get_ready_is_named_with_its_phase(tmp_path: Path) -> None:
    def train() -> None:
        import hpctrain.collective

        hpctrain.collective.barrier(timeout_s=600)

    trainer = DataParallelTrainer(
        train,
        backend_config=HangingConfig(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=tmp_path,
            name="run",
            verbose=0,
            launcher="local",
            failure_config=FailureConfig(start_timeout_s=2.0),
        ),
    )
    with pytest.raises(WorkerHangError, match=r"^rank 1 of 2 .* hangs in phase backend: no progr"):
        trainer.fit()


STOP_IN_MPI_INIT = """
import os, signal, sys

class StopRankOne:
    def find_spec(self, name, path=None, target=None):
        if name == "mpi4py.MPI" and os.environ.get("PMI_RANK") == "1":
            os.kill(os.getpid(), signal.SIGSTOP)

sys.meta_path.insert(0, StopRankOne())
"""


def test_a_rank_that_does_not_get_through_mpi_init_is_named(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STOP_IN_MPI_INIT)
    (tmp_path / "group").mkdir()
    group = WorkerGroup(
        num_workers=2, environment={"PYTHONPATH": str(tmp_path)}, path=tmp_path / "group"
    )
    with pytest.raises(LaunchError) as caught:
        group.start(timeout_s=4.0)
    message = str(caught.value)
    assert "0 of 2 ranks joined within 4 s; 2 processes had begun" in message
    assert f"rank 1 on {os.uname().nodename} (its process is stopped (SIGSTOP" in message
    assert "initialize (" in (tmp_path / "group/stacks/1/rank-00001.txt").read_text()


SCRIPT = """
import os, signal, sys
import hpctrain
import hpctrain.collective
from hpctrain import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, SlurmConfig

def train():
    context = hpctrain.get_context()
    hpctrain.report({"step": 0})
    if context.get_world_rank() == 3 and context.world.attempt == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    hpctrain.collective.barrier(timeout_s=600)
    return context.world.attempt

if __name__ == "__main__":
    print(DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2)),
        run_config=RunConfig(
            storage_path=sys.argv[1],
            name="run",
            failure_config=FailureConfig(hang_timeout_s=4.0, max_failures=1),
        ),
    ).fit().return_value)
"""


@pytest.mark.slurm
def test_in_a_job_the_agent_of_the_node_looks_at_a_stopped_rank_and_all_start_again(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = run_python(script, tmp_path, environ=virtual_slurm.environ, timeout_s=150)
    assert done.stdout.endswith("2\n")
    result = Result.from_path(tmp_path / "run")
    assert re.search(r"rank 3 of 4 on \S+ hangs in phase training", str(result.attempts[0].cause))
    written = stacks(tmp_path)
    assert set(written) == {0, 1, 2, 3}
    assert "state: T (stopped)" in written[3]
    assert "wait_barrier" in written[0]
