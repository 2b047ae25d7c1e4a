"""The kernel kills a rank for want of memory, and the error says which, where and how much."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.control.memory import MemoryCgroup
from hpctrain.slurm.why import Explanation, explain_job
from hpctrain.testing.slurm import VirtualCluster
from tests.clusters import cluster_with_limits
from tests.processes import run_python
from tests.waiting import wait_until

LIMIT_MIB = 300

SCRIPT = """
import os
import sys
import hpctrain
import hpctrain.collective
from hpctrain import (
    BackendConfig, Checkpoint, DataParallelTrainer, FailureConfig, HpctrainError, RunConfig,
    ScalingConfig, SlurmConfig,
)

class Forked(BackendConfig):
    preload = ("hpctrain.worker.main",)

class OfItsOwn(BackendConfig):
    pass

def fill():
    kept = []
    while True:
        kept.append(bytearray(b"x") * 2**22)

def train(config):
    rank = hpctrain.get_context().get_world_rank()
    hpctrain.report({"step": 0}, Checkpoint.from_dict({"step": 0}) if rank == 0 else None)
    if rank == config["rank"]:
        if config["who"] == "rank":
            fill()
        child = os.fork()
        if child == 0:
            fill()
        _, status = os.waitpid(child, 0)
        raise RuntimeError(f"DataLoader worker is killed by signal {os.WTERMSIG(status)}")
    hpctrain.collective.barrier(timeout_s=60)

if __name__ == "__main__":
    storage, who, workers, rank = sys.argv[1:5]
    slurm = SlurmConfig(nodes=int(sys.argv[5]), mem=sys.argv[6]) if sys.argv[5:] else SlurmConfig()
    try:
        DataParallelTrainer(
            train,
            train_loop_config={"who": who, "rank": int(rank)},
            backend_config={"1": Forked, "0": OfItsOwn}[os.environ.get("FORKED", "0")](),
            scaling_config=ScalingConfig(num_workers=int(workers), slurm=slurm),
            run_config=RunConfig(
                storage_path=storage, name="run", verbose=0,
                failure_config=FailureConfig(max_failures=int(slurm.mem is not None)),
            ),
        ).fit()
    except HpctrainError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(4)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """Provide an empty memory cgroup with a limit, inside the one that the tests run in."""
    mine = MemoryCgroup.of(os.getpid())
    if mine is None:
        pytest.skip("no memory cgroup is mounted here")
    group = Path(mine.directories[0]) / f"hpctrain-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"a memory cgroup cannot be made here: {error}")
    try:
        limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max")
        found = [group / name for name in limits if (group / name).exists()]
        if not found:
            pytest.skip(f"{mine.directories[0]} does not pass the control of memory on")
        for limit in found:
            limit.write_text(str(LIMIT_MIB * 2**20))
        if (group / "memory.swap.max").exists():
            (group / "memory.swap.max").write_text("0")
        yield group
    finally:
        deadline = time.monotonic() + 20
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        group.rmdir()


@pytest.fixture
def run_inside(
    small_cgroup: Path, script: Path, tmp_path: Path
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    def run(who: str) -> subprocess.CompletedProcess[str]:
        enter = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(small_cgroup)]
        return subprocess.run(
            [*enter, sys.executable, str(script), str(tmp_path), who, "2", "1"],
            env={**os.environ, "HPCTRAIN_LAUNCHER": "local"},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.mark.mpi
def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_told_with_its_limit(
    run_inside: Callable[[str], subprocess.CompletedProcess[str]],
    small_cgroup: Path,
    tmp_path: Path,
) -> None:
    done = run_inside("rank")
    assert done.returncode == 4, done.stdout + done.stderr
    first, *further = done.stdout.splitlines()
    assert first.startswith(
        f"WorkerError: rank 1 of 2 on {os.uname().nodename} failed without an exception: killed by "
        f"the kernel, out of memory: the 2 ranks of its node share a limit of {LIMIT_MIB} MiB, of "
        f"which {LIMIT_MIB} MiB were used"
    )
    assert (
        f"  Make batches smaller, start fewer workers, or raise the limit of {small_cgroup}."
        in further
    )
    assert "checkpoints/000001" in further[0]
    ended = Result.from_path(tmp_path / "run").attempts[0]
    assert "out of memory" in str(ended.cause)


@pytest.mark.mpi
def test_a_child_that_the_kernel_kills_is_told_beside_what_the_rank_raised(
    run_inside: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    done = run_inside("child")
    assert done.returncode == 4, done.stdout + done.stderr
    first, *further = done.stdout.splitlines()
    assert "rank 1 of 2" in first
    assert "RuntimeError: DataLoader worker is killed by signal 9" in first
    assert further[1].startswith(
        "  Of its processes, 1 had been killed by the kernel, out of memory: the 2 ranks of its "
        f"node share a limit of {LIMIT_MIB} MiB"
    )


@pytest.fixture(scope="module")
def limited_slurm() -> Iterator[VirtualCluster]:
    """Provide a cluster whose jobs get the memory that they asked for, and no more."""
    with cluster_with_limits() as cluster:
        yield cluster


@pytest.mark.slurm
@pytest.mark.parametrize("forked", ["0", "1"])
def test_a_rank_of_a_job_that_uses_more_than_the_job_asked_for_is_told_with_node_and_limit(
    limited_slurm: VirtualCluster, script: Path, tmp_path: Path, forked: str
) -> None:
    done = run_python(
        script,
        tmp_path,
        "rank",
        "4",
        "2",
        "2",
        f"{LIMIT_MIB}M",
        environ={**limited_slurm.environ, "FORKED": forked},
        code=4,
    )
    first, *further = done.stdout.splitlines()
    assert re.match(
        r"WorkerError: rank 2 of 4 on node2 failed without an exception: killed by the kernel, out "
        rf"of memory: the 2 ranks of its node share a limit of {LIMIT_MIB} MiB, of which "
        rf"{LIMIT_MIB} MiB were used",
        first,
    )
    assert (
        "  Ask Slurm for more memory, with resources_per_worker={'memory': BYTES} or "
        "SlurmConfig(mem='...'), or make batches smaller." in further
    )
    argv = [sys.executable, "-m", "hpctrain.cli", "history", str(tmp_path / "run")]
    shown = subprocess.run(argv, capture_output=True, text=True).stdout
    flat = " ".join(shown.split())
    killed = "rank 2 on node2 was killed (out of memory)"
    restart = f"{killed}; restart 1 of 1 from checkpoint 000001"
    assert Result.from_path(tmp_path / "run").status.last_restart == restart
    assert flat.startswith("run: failed, 2 attempts, 1 restart, 1 job ")
    assert flat.count(f"ended {killed} ") == 2
    assert f" {restart} attempt 2: " in flat
    assert '"not-forked"' not in (tmp_path / "run" / "ledger.jsonl").read_text()
    # Slurm says the same, on its own.
    said = (tmp_path / "run/logs/1/launcher.out").read_text()
    assert re.search(r"task 2: Out Of Memory", said)
    assert re.search(r"Detected 1 oom.kill event", said)


@pytest.mark.slurm
@pytest.mark.parametrize("ends_with", ["its own", "the hog's"])
def test_a_job_that_used_more_memory_than_it_has_says_so_when_asked_why(
    limited_slurm: VirtualCluster, monkeypatch: pytest.MonkeyPatch, ends_with: str
) -> None:
    hog = "python3 -c 'bytearray(b\"x\") * 2**30'"
    # A script that goes on after the kernel has killed its command ends with 0.
    script = f"{hog}; true" if ends_with == "its own" else hog
    options = ["--parsable", f"--mem={LIMIT_MIB}M", "--output=/dev/null", f"--wrap={script}"]
    submitted = limited_slurm.run_on("head", ["sbatch", *options])
    assert submitted.returncode == 0, submitted.stderr
    for name, value in limited_slurm.environ.items():
        monkeypatch.setenv(name, value)

    def look() -> Explanation | None:
        answer = explain_job(submitted.stdout.strip(), is_run=False)
        return answer if answer.job.is_final else None

    answer = wait_until(look, "its end", interval_s=0.2, timeout_s=60)
    assert answer is not None
    assert answer.job.state == "OUT_OF_MEMORY", answer
    assert answer.job.exit_code == "0:125"
    assert answer.meaning.startswith("a process used more memory than the job has on its node")
    assert "sbatch --mem" in answer.step
