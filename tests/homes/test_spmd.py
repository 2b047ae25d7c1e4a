"""Processes that already are ranks: ``mpiexec -n 4 python train.py``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.rundir.history import read_history
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster

pytestmark = pytest.mark.mpi
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))

SCRIPT = """
import shutil
import sys
import time
from datetime import timedelta
import hpctrain
import hpctrain.collective
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, UserCallback
from hpctrain.execute import executor_record
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status

storage, what, workers = sys.argv[1], sys.argv[2], eval(sys.argv[3])

# As a tracker whose server does not answer.
class Waiting(UserCallback):
    fatal = True

    def after_report(self, run_context, *_):
        paths = RunPaths(run_context.path)
        before, deadline = read_status(paths), time.monotonic() + 60
        while read_status(paths) == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)

def train(config):
    context = hpctrain.get_context()
    rank = context.get_world_rank()
    for step in range(3 if config["what"] != "run on" else 10_000):
        time.sleep(0.01 * (step > 2))   # a step of work
        if config["what"] == "fail" and step == 2:
            if rank == 1:
                raise ValueError("the loss is NaN")
            hpctrain.collective.barrier(timeout_s=600)
        saved = Checkpoint.from_dict({"step": step}) if rank == 0 else None
        hpctrain.report({"step": step, "rank": rank}, saved)
    if config["what"] == "lose" and rank == 0:
        shutil.rmtree(context.get_storage())
        context.get_storage().touch()
    return context.get_world_size()

def fit(name):
    return DataParallelTrainer(
        train,
        train_loop_config={"what": what},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=storage,
            name=name,
            total_time=timedelta(seconds=1) if what == "run on" else None,
            callbacks=[Waiting()] if what == "wait" else [],
        ),
    ).fit()

if __name__ == "__main__":
    if what == "wait":
        executor_record._LIFE_INTERVAL_S = 0.2
    first = fit("one")
    second = fit("two")   # the same ranks, although their launcher's variables are gone
    sys.stdout.write(f"returned {first.return_value} {second.metrics} {second.path.name}\\n")
"""


def run_ranks(
    tmp_path: Path, text: str, ranks: int, *arguments: str
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(text)
    return subprocess.run(
        [MPIEXEC, "-n", str(ranks), sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def start(
    tmp_path: Path, what: str, workers: int | tuple[int, int], storage: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return run_ranks(tmp_path, SCRIPT, 4, str(storage or tmp_path), what, str(workers))


def test_every_rank_gets_the_result_and_a_second_fit_still_knows(tmp_path: Path) -> None:
    done = start(tmp_path, "train", 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("returned 4 {'step': 2, 'rank': 0} two") == 4
    for name in ("one", "two"):
        result = Result.from_path(tmp_path / name)
        assert result.state == "finished"
        assert result.status.launcher == "spmd"
        assert [m["step"] for m in result.metrics_history] == [0, 1, 2]


def test_a_failing_rank_ends_all_of_them_within_seconds(tmp_path: Path) -> None:
    done = start(tmp_path, "fail", 4)
    assert done.returncode != 0
    assert "rank 1 of 4 on" in done.stderr
    assert "ValueError: the loss is NaN" in done.stderr
    result = Result.from_path(tmp_path / "one")
    assert result.state == "failed"
    assert result.checkpoint is not None
    assert "rank 1 of 4" in str(result.error)


def test_ranks_are_told_when_the_end_of_the_run_cannot_be_written_down(tmp_path: Path) -> None:
    done = start(tmp_path, "lose", 4)
    assert done.returncode != 0
    assert str(tmp_path / "one") in done.stderr


def test_ranks_are_told_when_the_run_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = start(tmp_path, "train", 4, storage=tmp_path / "file" / "runs")
    assert done.returncode != 0
    # By rank 0, for all of them.
    assert done.stderr.count(f"ConfigError: RunConfig(storage_path='{tmp_path}/file/runs')") == 1
    assert f"{tmp_path}/file is not a directory." in done.stderr


def test_the_total_time_ends_it(tmp_path: Path) -> None:
    done = start(tmp_path, "run on", 4)
    assert done.returncode != 0
    assert "RunStoppedError: the run stopped because its total_time=" in done.stderr
    result = Result.from_path(tmp_path / "one")
    assert result.state == "stopped"
    steps = [m["step"] for m in result.metrics_history]
    assert steps == list(range(len(steps)))
    # A job that Slurm starts again has what is left.
    assert read_history(read_events(RunPaths(tmp_path / "one"))).used_s >= 1


def test_a_callback_that_waits_does_not_look_like_death(tmp_path: Path) -> None:
    done = start(tmp_path, "wait", 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("returned 4") == 4


def test_a_world_of_another_size_is_refused(tmp_path: Path) -> None:
    done = start(tmp_path, "train", 3)
    assert done.returncode != 0
    assert "num_workers=3, but MPI found a world of 4 ranks" in done.stderr
    assert not (tmp_path / "one").exists()


def test_an_elastic_run_takes_the_world_that_is_there(tmp_path: Path) -> None:
    done = start(tmp_path, "train", (2, 6))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("returned 4 ") == 4
    refused = start(tmp_path, "train", (5, 6))
    assert refused.returncode != 0
    assert "num_workers=5, but MPI found a world of 4 ranks" in refused.stderr


@pytest.mark.slurm
def test_singletons_are_an_error_that_says_which_pmi_was_tried_and_which_to_use(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    argv = ["srun", "--mpi=none", "-N2", "--ntasks-per-node=2"]
    done = subprocess.run(
        [*argv, sys.executable, str(script), str(tmp_path), "train", "4"],
        env={**os.environ, **virtual_slurm.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "4 ranks were asked for, but MPI found a world of 1" in done.stderr
    assert "no PMI at all (srun --mpi=none)" in done.stderr
    assert "start the ranks with 'srun --mpi=pmi2'" in done.stderr
    assert "SlurmConfig" not in done.stderr, "what hpctrain does not start, it cannot change"


HANG = """
import signal, os, sys, time
import hpctrain
import hpctrain.collective
from hpctrain import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def train(config):
    hpctrain.report({"step": 0})
    if hpctrain.get_context().get_world_rank() == 1:
        deadline = time.monotonic() + 60
        stacks = [f"{config['run']}/stacks/1/rank-0000{rank}.txt" for rank in range(2)]
        while not all(map(os.path.exists, stacks)) and time.monotonic() < deadline:
            time.sleep(0.05)
    hpctrain.collective.barrier(timeout_s=600)

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        train_loop_config={"run": sys.argv[1] + "/run"},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=sys.argv[1], name="run", failure_config=FailureConfig(hang_timeout_s=2.0)
        ),
    ).fit()
"""


def test_a_rank_that_hangs_is_written_down_and_not_ended(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, HANG, 2, str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert Result.from_path(tmp_path / "run").state == "finished"
    stacks = (tmp_path / "run/stacks/1/rank-00001.txt").read_text()
    assert re.search(r"train\.py\", line \d+ in train", stacks)


ALONE = """
import sys
import hpctrain
import hpctrain.collective
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

def train():
    if hpctrain.get_context().get_world_rank() == 0:
        hpctrain.collective.barrier(timeout_s=600)

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=sys.argv[1], name="run"),
    ).fit()
"""


def test_ranks_that_are_ended_because_one_waits_in_vain_say_so(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, ALONE, 2, str(tmp_path))
    assert done.returncode != 0
    assert "rank 1 returned, but rank 0 waits for all ranks in barrier()." in done.stderr
    assert Result.from_path(tmp_path / "run").state == "failed"


RELAYED = """
import os, signal, sys, time
from pathlib import Path
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from hpctrain.launch.existing_ranks import ExistingRanks

dismiss = ExistingRanks.dismiss

def count_and_dismiss(ranks, *arguments, **options):
    Path(sys.argv[1], "connections").write_text(str(ranks.num_connections))
    dismiss(ranks, *arguments, **options)

ExistingRanks.dismiss = count_and_dismiss

def train(config):
    rank = hpctrain.get_context().get_world_rank()
    for step in range(3):
        hpctrain.report({"step": step, "rank": rank}, Checkpoint.from_dict({"rank": rank}))
    if rank == config["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + 100
    while config["dies"] >= 0 and time.monotonic() < end:
        # Not in MPI, whose library may end a rank that sends to one that is gone.
        time.sleep(0.05)
    return rank

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        train_loop_config={"dies": int(sys.argv[2])},
        scaling_config=ScalingConfig(num_workers=4),
        run_config=RunConfig(storage_path=sys.argv[1], name="run"),
    ).fit()
"""


def run_on_two_nodes(
    cluster: VirtualCluster, tmp_path: Path, *, dies: int = -1
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(RELAYED)
    argv = ["srun", "--mpi=pmi2", "-N2", "--ntasks-per-node=2"]
    return subprocess.run(
        [*argv, sys.executable, str(script), str(tmp_path), str(dies)],
        env={**os.environ, **cluster.environ, "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_ranks_of_one_node_need_no_connection_over_tcp(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, RELAYED, 4, str(tmp_path), "-1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "connections").read_text() == "0"


@pytest.mark.slurm
def test_four_ranks_on_two_nodes_have_one_connection(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    done = run_on_two_nodes(virtual_slurm, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "connections").read_text() == "1"
    result = Result.from_path(tmp_path / "run")
    assert result.state == "finished"
    assert [m["step"] for m in result.metrics_history] == [0, 1, 2]
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 3


@pytest.mark.slurm
@pytest.mark.parametrize("dies", [2, 3])
def test_a_rank_that_is_killed_is_named_whether_it_is_the_relay_of_its_node_or_not(
    virtual_slurm: VirtualCluster, tmp_path: Path, dies: int
) -> None:
    done = run_on_two_nodes(virtual_slurm, tmp_path, dies=dies)
    assert done.returncode != 0
    # On the second node of the two that Slurm has chosen.
    named = rf"rank {dies} of 4 on node[2-9] failed without an exception"
    assert re.search(named, done.stderr)
    cut_off = "Rank 3 of this node is connected through it, and not known to have failed"
    assert (cut_off in done.stderr) is (dies == 2)
    result = Result.from_path(tmp_path / "run")
    assert result.state == "failed"
    assert result.checkpoint is not None
    assert result.checkpoint.path.name == "000003"
