"""In every home a run records what its ranks waited for; the ranks measure it themselves, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until_final

MPIEXEC = Path(sys.executable).with_name("mpiexec")
TIMEOUT_S = 120
# Each rank writes down what it has waited between its first report and its last: by its own clock,
# around the calls.
SCRIPT = """
import sys
from pathlib import Path

import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.data import from_items


def train(config):
    import json
    import threading
    import time
    from contextlib import contextmanager
    from pathlib import Path

    from hpctrain.collective import barrier

    rank = hpctrain.get_context().get_world_rank()
    never, waited = threading.Event(), {"data": 0.0, "checkpoint": 0.0, "collective": 0.0}

    @contextmanager
    def measured(kind):
        began = time.perf_counter()
        yield
        waited[kind] += time.perf_counter() - began

    def slow(batch):
        never.wait(0.03 if rank == 0 else 0.01)
        return batch

    shard = hpctrain.get_dataset_shard("train")
    slowly = shard.dataset.map_batches(slow, batch_size=1, keeps_rows=True)
    batches = iter(slowly.shard(rank=0, world_size=1).iter_batches(
        batch_size=1, prefetch_batches=0
    ))
    with measured("checkpoint"):
        hpctrain.report({"step": 0})
    for step in range(1, 11):
        with measured("data"):
            next(batches)
        # Computes: rank 1 for longer, and the others wait for it.
        never.wait(0.06 if rank == 1 else 0.01)
        with measured("collective"):
            barrier()
        until_report = dict(waited)
        if step % 5:
            with measured("checkpoint"):
                hpctrain.report({"step": step})
            continue
        with measured("checkpoint"), hpctrain.checkpoint_dir() as directory:
            began = time.perf_counter()
            Path(directory, f"{rank}.txt").write_text("x")
            never.wait(0.15)
            until_report["checkpoint"] += time.perf_counter() - began
            hpctrain.report({"step": step}, Checkpoint.from_directory(directory))
    Path(config["measured"], f"{rank}.json").write_text(json.dumps(until_report))


def main(storage, name, num_workers, launcher):
    measured = Path(storage) / "measured"
    measured.mkdir(exist_ok=True)
    DataParallelTrainer(
        train,
        train_loop_config={"measured": str(measured)},
        datasets={"train": from_items([{"x": n} for n in range(20)])},
        scaling_config=ScalingConfig(num_workers=num_workers, slurm=SlurmConfig(time="5")),
        run_config=RunConfig(name=name, storage_path=storage, launcher=launcher, verbose=0),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
"""


def run(
    script: Path,
    name: str,
    *,
    num_ranks: int,
    launcher: str,
    mpiexec: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Run the script, with its runs beside it. In its interpreter ``num_ranks`` is 0."""
    done = subprocess.run(
        [*mpiexec, sys.executable, script, script.parent, name, str(num_ranks), launcher],
        env=environ,
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "waits.py"
    path.write_text(SCRIPT)
    return path


def check(storage: Path, name: str, *, num_ranks: int) -> None:
    """Compare what the ledger has with what the ranks have measured."""
    (event,) = [e for e in read_events(RunPaths(storage / name)) if e["event"] == "attempt-ended"]
    found: dict[str, Any] = event["waits"]
    assert found["ranks"] == num_ranks
    measured = [
        json.loads((storage / "measured" / f"{rank}.json").read_text()) for rank in range(num_ranks)
    ]
    for kind in ("data", "checkpoint", "collective"):
        of_ranks = [each[kind] for each in measured]
        # Of one rank there is no other to wait for; else it is much more than the tolerance.
        assert max(of_ranks) >= 0.25 or (kind == "collective" and num_ranks == 1)
        wait = found[kind]
        near = {"rel": 0.1, "abs": 0.05}
        assert wait["mean"] == pytest.approx(sum(of_ranks) / num_ranks, **near), kind
        assert wait["most"][0] == pytest.approx(max(of_ranks), **near), kind
        assert wait["least"][0] == pytest.approx(min(of_ranks), **near), kind
        if max(of_ranks) - min(of_ranks) > 0.15:
            # On a busy machine they may have waited for as long, whatever the script does.
            assert wait["most"][1] == of_ranks.index(max(of_ranks)), kind
            assert wait["least"][1] == of_ranks.index(min(of_ranks)), kind
    if num_ranks > 1:
        assert found["data"]["most"][1] == 0
    total = sum(found[kind]["mean"] for kind in ("data", "checkpoint", "collective"))
    assert total < found["seconds"]


def test_the_interpreter_records_it(script: Path, tmp_path: Path) -> None:
    run(script, "inline", num_ranks=0, launcher="auto")
    check(tmp_path, "inline", num_ranks=1)


@pytest.mark.mpi
def test_ranks_on_this_machine_report_it(script: Path, tmp_path: Path) -> None:
    run(script, "local", num_ranks=2, launcher="local")
    check(tmp_path, "local", num_ranks=2)


@pytest.mark.mpi
def test_ranks_that_run_already_report_it(script: Path, tmp_path: Path) -> None:
    run(script, "spmd", num_ranks=2, launcher="auto", mpiexec=(str(MPIEXEC), "-n", "2"))
    check(tmp_path, "spmd", num_ranks=2)


@pytest.mark.slurm
def test_ranks_on_two_nodes_of_a_job_report_it(
    script: Path, tmp_path: Path, virtual_slurm: VirtualCluster
) -> None:
    script.write_text(SCRIPT.replace('SlurmConfig(time="5")', 'SlurmConfig(time="5", nodes=2)'))
    environ = {**os.environ, **virtual_slurm.environ}
    run(script, "job", num_ranks=2, launcher="slurm", environ=environ)
    wait_until_final(tmp_path / "job", timeout_s=TIMEOUT_S)
    check(tmp_path, "job", num_ranks=2)
