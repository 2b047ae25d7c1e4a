"""What must be the same with every Slurm and every MPI, and needs nothing but hpctrain itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.slurm.pmi import parse_pmi_types
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster
from tests.clusters import own_cluster
from tests.waiting import wait_until, wait_until_final

pytestmark = [pytest.mark.slurm, pytest.mark.mpi]

TIMEOUT_S = 120.0
MPIEXEC = Path(sys.executable).with_name("mpiexec")
# The wheel is found by itself. Debian's name of Open MPI's library is the same since 1.7.
LIBRARIES = {"MPICH": {}, "Open MPI": {"MPI4PY_LIBMPI": "libmpi.so.40"}}

SCRIPT = """
import argparse
from hpctrain import DataParallelTrainer, HpctrainError, RunConfig, ScalingConfig, SlurmConfig

def train():
    import random
    from mpi4py import MPI
    import hpctrain

    comm = MPI.COMM_WORLD
    chance, weight = random.Random(comm.rank), 0.0
    for _ in range(5):
        loss = sum(comm.allgather((chance.random() - weight) ** 2))
        weight += 0.1 * loss
        hpctrain.report({"loss": loss})
    return MPI.Get_library_version()

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="run")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--mpi", default="auto")
    parser.add_argument("--time")
    parser.add_argument("--account")
    parser.add_argument("--qos")
    args = parser.parse_args()
    slurm = SlurmConfig(
        nodes=args.nodes, mpi=args.mpi, time=args.time, account=args.account, qos=args.qos
    )
    try:
        result = DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=args.workers, slurm=slurm),
            run_config=RunConfig(storage_path=".", name=args.name),
        ).fit()
    except HpctrainError as error:
        print(f"{type(error).__name__}: {error}")
        raise SystemExit(4)
    print("trained with", result.return_value)
"""


def fit(name: str, *options: str) -> list[str]:
    return [sys.executable, "train.py", f"--name={name}", *options]


def run(argv: list[str], cwd: Path, environ: dict[str, str], *, status: int = 0) -> str:
    """Run the script in a directory; return what it prints, but for its errors."""
    (cwd / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        argv,
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def losses(path: Path) -> list[float]:
    result = wait_until_final(path, timeout_s=TIMEOUT_S)
    assert result.state == "finished", result.error
    return [metrics["loss"] for metrics in result.metrics_history]


@pytest.mark.matrix("all homes, equal losses")
def test_every_home_has_the_same_losses(virtual_slurm: VirtualCluster, tmp_path: Path) -> None:
    on_cluster = dict(virtual_slurm.environ)
    two_nodes = ["--nodes=2", "--ntasks-per-node=2"]
    run(fit("laptop"), tmp_path, {"HPCTRAIN_LAUNCHER": "local"})
    run([str(MPIEXEC), "-n", "4", *fit("mpiexec")], tmp_path, {})
    run(["salloc", "--quiet", *two_nodes, *fit("salloc")], tmp_path, on_cluster)
    run(["srun", "--mpi=pmi2", *two_nodes, *fit("srun")], tmp_path, on_cluster)
    batch = ["sbatch", *two_nodes, "--output=job.out", f"--wrap={' '.join(fit('sbatch'))}"]
    run(batch, tmp_path, on_cluster)
    run(fit("login", "--nodes=2"), tmp_path, on_cluster)

    expected = losses(tmp_path / "laptop")
    assert len(set(expected)) == 5
    for home in ("mpiexec", "salloc", "srun", "sbatch", "login"):
        assert losses(tmp_path / home) == expected, home
    assert len(Result.from_path(tmp_path / "login").nodes) == 2


def require_pmi(cluster: VirtualCluster, pmi: str) -> None:
    """Expect nothing of a PMI that this Slurm was built without."""
    answer = cluster.run_on("head", ["srun", "--mpi=list"])
    if pmi not in parse_pmi_types(answer.stdout + answer.stderr):
        pytest.xfail(f"this build of Slurm has no mpi/{pmi} plugin")


@pytest.mark.parametrize(
    ("library", "pmi"),
    [
        pytest.param(library, pmi, marks=pytest.mark.matrix(f"{library} by --mpi={pmi}"))
        for library, pmi in (("MPICH", "pmi2"), ("Open MPI", "pmix"))
    ],
)
def test_ranks_of_a_library_find_each_other_by_its_pmi(
    virtual_slurm: VirtualCluster, tmp_path: Path, library: str, pmi: str
) -> None:
    require_pmi(virtual_slurm, pmi)
    environ = {**virtual_slurm.environ, **LIBRARIES[library]}
    said = run(fit("named", "--nodes=2", f"--mpi={pmi}"), tmp_path, environ)
    assert f"trained with {library}" in said
    # Nobody says which one it is.
    said = run(fit("probed", "--nodes=2"), tmp_path, environ)
    assert f"trained with {library}" in said
    assert losses(tmp_path / "named") == losses(tmp_path / "probed")


@pytest.mark.matrix("--mpi=none is refused in one sentence")
def test_ranks_without_a_pmi_say_which_one_to_use(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    # Open MPI 4 does not even start without PMIx.
    environ = dict(virtual_slurm.environ)
    said = run(fit("alone", "--nodes=2", "--mpi=none"), tmp_path, environ, status=4)
    assert "4 ranks were asked for, but MPI found a world of 1" in said
    assert "SlurmConfig(mpi='pmi2')" in said


@pytest.mark.parametrize(
    ("library", "pmi", "other"),
    [
        pytest.param(library, pmi, other, marks=pytest.mark.matrix(f"{library} refuses {other}"))
        for library, pmi, other in (("MPICH", "pmi2", "pmix"), ("Open MPI", "pmix", "pmi2"))
    ],
)
def test_the_pmi_of_another_library_is_refused_with_the_right_one(
    virtual_slurm: VirtualCluster, tmp_path: Path, library: str, pmi: str, other: str
) -> None:
    require_pmi(virtual_slurm, other)
    environ = {**virtual_slurm.environ, **LIBRARIES[library]}
    said = run(fit("wrong", "--nodes=2", f"--mpi={other}"), tmp_path, environ, status=4)
    assert f"SlurmConfig(mpi={pmi!r})" in said
    events = read_events(RunPaths(tmp_path / "wrong"))
    assert [event["event"] for event in events].count("attempt-started") == 1


@pytest.fixture(scope="module")
def with_limits() -> Iterator[VirtualCluster]:
    """A cluster with accounting, a QOS that refuses more than a minute, and ones of one job."""
    spec = ClusterSpec(num_nodes=2, gpus_per_node=0, accounting=True)
    accounting = (
        "add qos brief maxwall=1 flags=DenyOnLimit",
        "add account crowded cluster=hpctrain grpjobs=1",
        "add user root account=crowded",
        "add account narrow cluster=hpctrain",
        "add user root account=narrow maxjobs=1",
        "add qos single maxjobsperuser=1",
        "modify user root set qos+=brief,single",
    )
    with own_cluster(spec, *accounting) as cluster:
        yield cluster


@pytest.mark.matrix("accounting and limits")
def test_a_limit_of_accounting_is_named_and_what_it_lets_through_is_accounted(
    with_limits: VirtualCluster, tmp_path: Path
) -> None:
    environ = dict(with_limits.environ)
    options = ["--workers=2", "--qos=brief"]
    said = run(fit("long", *options, "--time=5"), tmp_path, environ, status=4)
    assert "Slurm refused the job" in said
    assert "qos='brief'" in said

    occupant = [
        "sbatch",
        "--parsable",
        "--account=crowded",
        "--output=/dev/null",
        "--wrap=sleep 60",
    ]
    first = run(occupant, tmp_path, environ).strip()
    waiting = subprocess.Popen(
        fit("second", "--workers=2", "--account=crowded"),
        cwd=tmp_path,
        env={**os.environ, **environ},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for_reason(with_limits, "AssocGrpJobsLimit")
        with_limits.run_on("head", ["scancel", first])
        assert waiting.wait(timeout=TIMEOUT_S) == 0
    finally:
        waiting.kill()
        waiting.wait()

    run(fit("short", *options, "--account=hpctrain", "--time=1"), tmp_path, environ)
    job_id = Result.from_path(tmp_path / "short").status.job_id
    ask = ["sacct", "-nPX", f"--jobs={job_id}", "--format=State,QOS,Account"]
    # slurmdbd learns of the end of a job a moment later.
    ended = "COMPLETED|brief|hpctrain"
    wait_for_answer(with_limits, ask, lambda told: told.strip() == ended, ended)


def wait_for_reason(cluster: VirtualCluster, reason: str) -> None:
    ask = ["squeue", "--noheader", "--states=PENDING", "--format=%r"]
    wait_for_answer(cluster, ask, lambda told: reason in told, f"a job that waits for {reason}")


def wait_for_answer(
    cluster: VirtualCluster, ask: list[str], is_it: Callable[[str], bool], what: str
) -> None:
    told = ""

    def is_told() -> bool:
        nonlocal told
        told = cluster.run_on("head", ask).stdout
        return is_it(told)

    wait_until(is_told, lambda: f"{what}, in {told!r}", timeout_s=30, interval_s=0.2)


@pytest.mark.matrix("limits that a job waits for are shown", ci=False)
def test_a_follower_says_which_limit_its_job_waits_for(
    with_limits: VirtualCluster, tmp_path: Path
) -> None:
    environ = {**os.environ, **with_limits.environ, "PYTHONUNBUFFERED": "1"}
    limits = {
        "AssocGrpJobsLimit": "--account=crowded",
        "AssocMaxJobsLimit": "--account=narrow",
        "QOSMaxJobsPerUserLimit": "--qos=single",
    }
    followers = {}
    try:
        for reason, limit in limits.items():
            run(["sbatch", limit, "--output=/dev/null", "--wrap=sleep 300"], tmp_path, environ)
            followers[reason] = subprocess.Popen(
                fit(reason, "--workers=1", limit),
                cwd=tmp_path,
                env=environ,
                stdout=subprocess.PIPE,
                text=True,
            )
        for reason, follower in followers.items():
            assert follower.stdout is not None
            # Ends with the follower, which the test's own time limit ends.
            said = next((line for line in follower.stdout if " waits (" in line), "nothing")
            assert f"waits ({reason}): its user, account or QOS has as much running" in said
    finally:
        for follower in followers.values():
            follower.kill()
            follower.communicate()
        with_limits.run_on("head", ["scancel", "--user=root"])
