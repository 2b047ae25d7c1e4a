"""Runs whose ranks start in a packed environment, on two nodes with memory of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.errors import LaunchError, RunStoppedError
from hpctrain.testing.pytest_plugin import is_all_required
from hpctrain.testing.slurm import VirtualCluster
from hpctrain.testing.slurm.processes import wait_until
from tests.pack.conftest import SmallEnvironment

pytestmark = [pytest.mark.slurm, pytest.mark.mpi]
TIMEOUT_S = 240
_ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, os, signal, sys, time
import hpctrain
from hpctrain import BackendConfig, Checkpoint, DataParallelTrainer, FailureConfig, HpctrainError
from hpctrain import RunConfig, ScalingConfig, SlurmConfig

class Config(BackendConfig):
    preload = ("hpctrain.worker.main", "hpctrain.worker.train", "cloudpickle", "mpi4py")

def train(config):
    import mpi4py, random, shutil
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    first = hpctrain.get_checkpoint() is None
    state = Checkpoint.from_dict({"step": 1})
    hpctrain.report({"sum": world.allreduce(world.rank)}, state if world.rank == 0 else None)
    # Rank 0 leaves report() when the checkpoint is complete.
    world.barrier()
    if first and config.get("killed") == world.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    while config.get("waits"):
        open("begun", "w").close()
        time.sleep(0.1)
    places = [sys.prefix, sys.executable, hpctrain.__file__, mpi4py.__file__, *sys.path]
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        parent = file.read().split(chr(0))
    draw, weight, losses = random.Random(world.rank), 1.0, []
    for _ in range(5):
        gradient = sum(weight * draw.gauss(0, 1) ** 2 for _ in range(64))
        weight -= 1e-3 * world.allreduce(gradient)
        losses.append(weight.hex())
    here = os.uname().nodename, places, shutil.which("typer"), parent, losses
    return hpctrain.get_context().world.attempt, world.allgather(here)

if __name__ == "__main__":
    name, slurm, config = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    result = DataParallelTrainer(
        train,
        train_loop_config=config,
        backend_config=Config(),
        scaling_config=ScalingConfig(
            num_workers=4,
            slurm=SlurmConfig(nodes=2, tasks_per_node=2, environment_pack_dir="/dev/shm", **slurm),
        ),
        run_config=RunConfig(
            storage_path="runs",
            name=name,
            failure_config=FailureConfig(max_failures=1),
            total_time=config.pop("total_time", None),
        ),
    ).fit()
    print(json.dumps(result.return_value))
"""


@pytest.fixture
def work() -> Iterator[Path]:
    """Return a working directory that is not below the environment, and has a space."""
    folder = Path(tempfile.mkdtemp(prefix="hpctrain work ", dir="/var/tmp"))
    (folder / "train.py").write_text(SCRIPT)
    yield folder
    shutil.rmtree(folder)


def begin(
    work: Path,
    cluster: VirtualCluster,
    environment: SmallEnvironment,
    pack: Path | None,
    *before: str,
    name: str = "run",
    setup: tuple[str, ...] = (),
    forks: bool = True,
    script: str = "train.py",
    **config: Any,
) -> subprocess.Popen[str]:
    """Start the script with the interpreter of the environment."""
    slurm = {"environment_pack": pack and str(pack), "setup": setup}
    variables = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "TMPDIR")}
    variables["HPCTRAIN_FORK_SERVER"] = str(int(forks))
    return subprocess.Popen(
        [*before, environment.python, script, name, json.dumps(slurm), json.dumps(config)],
        cwd=work,
        env={**variables, **cluster.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for the end of the script."""
    try:
        printed, said = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, printed, said)


def fit(*words: Any, **config: Any) -> subprocess.CompletedProcess[str]:
    """Run the script to its end: `begin` and `end`."""
    return end(begin(*words, **config))


def events(
    work: Path, name: str = "run", *, event: str = "environment-unpacked"
) -> list[dict[str, Any]]:
    lines = (work / "runs" / name / "ledger.jsonl").read_text().splitlines()
    return [found for line in lines if (found := json.loads(line))["event"] == event]


def returned(done: subprocess.CompletedProcess[str]) -> tuple[int, list[list[Any]]]:
    """Return the number of the attempt that ended well, and what each rank has found."""
    assert done.returncode == 0, done.stderr
    attempt, ranks = json.loads(done.stdout.splitlines()[-1])
    assert len(ranks) == 4
    return attempt, ranks


def left_on(cluster: VirtualCluster, node: str) -> list[str]:
    """Return what packs have left in the memory of a node."""
    listed = cluster.run_on(node, ["ls", "/dev/shm"]).stdout.split()
    return [name for name in listed if name.startswith("hpctrain-packs-")]


def check_rank(rank: list[Any], root: str) -> None:
    """Check that all that a rank imports is in a directory, and that its interpreter forks it."""
    _, places, typer, parent, _ = rank
    assert parent[:3] == [f"{root}/env/bin/python", "-m", "hpctrain.worker.fork_server"]
    (prefix, executable, *modules), path = places[:4], places[4:]
    assert (prefix, executable) == (f"{root}/env", f"{root}/env/bin/python")
    assert all(module.startswith(f"{root}/env/") for module in modules)
    assert not [place for place in path if "site-packages" in place and root not in place]
    assert typer is None or typer.startswith(root) or "/env" not in typer


def check_ranks(
    done: subprocess.CompletedProcess[str],
    packed: tuple[Path, dict[str, Any]],
    *,
    attempt: int = 1,
) -> None:
    """Check that all that ranks import is in the copy, and that its interpreter forks them."""
    root = f"/dev/shm/hpctrain-packs-{os.geteuid()}/{packed[1]['sha256'][:32]}"
    last_attempt, ranks = returned(done)
    assert last_attempt == attempt
    for rank in ranks:
        check_rank(rank, root)


def test_all_that_ranks_import_is_on_their_nodes_and_the_file_is_read_once(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed: tuple[Path, dict[str, Any]],
) -> None:
    done = fit(work, virtual_slurm, small_environment, packed[0], killed=2)
    check_ranks(done, packed, attempt=2)
    # The second attempt finds it there.
    (event,) = events(work)
    assert event["sha256"] == packed[1]["sha256"]
    assert len(event["nodes"]) == 2
    if virtual_slurm.spec.mode != "flat":
        assert (event["by"], event["reading"], event["reason"]) == ("sbcast", [], "")
    result = Result.from_path(work / "runs/run")
    assert result.metrics == {**result.metrics, "sum": 6}
    for node in virtual_slurm.node_names:
        assert left_on(virtual_slurm, node) == []
    assert events(work, event="not-forked") == []


def test_forked_from_a_copy_ranks_compute_the_same_to_the_last_bit(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed: tuple[Path, dict[str, Any]],
) -> None:
    losses = {}
    for name, pack, forks in (
        ("plain", None, False),
        ("copy", packed[0], False),
        ("forked", packed[0], True),
    ):
        done = fit(work, virtual_slurm, small_environment, pack, name=name, forks=forks)
        _, ranks = returned(done)
        assert ["hpctrain.worker.fork_server" in parent for *_, parent, _ in ranks] == [forks] * 4
        losses[name] = [losses for *_, losses in ranks]
    assert losses["forked"] == losses["copy"] == losses["plain"]


def test_ranks_and_agents_touch_nothing_of_the_shared_environment(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed: tuple[Path, dict[str, Any]],
) -> None:
    # The executor is on the first of the two nodes, and in the shared environment.
    second = virtual_slurm.node_names[1]
    with traced(virtual_slurm, second, work / "calls"):
        done = fit(work, virtual_slurm, small_environment, packed[0])
    check_ranks(done, packed)
    assert second in {node for node, *_ in returned(done)[1]}
    lines = (work / "calls").read_text(errors="replace").splitlines()
    started = '"-m", "hpctrain.worker.main"'
    ranks = [line for line in lines if "execve(" in line and started in line]
    assert len(ranks) >= 2
    base = packed[1]["base"]
    shared = [
        f'"{place}'
        for place in (small_environment.path, base, _ROOT / "hpctrain", _ROOT / "slurm_templates")
        if place is not None
    ]
    touched = [line for line in lines if any(place in line for place in shared)]
    assert touched == []


def test_modules_of_the_script_that_are_packed_are_imported_from_the_copy(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
) -> None:
    project = work / "project"
    (project / "mine").mkdir(parents=True)
    # What ranks find of it: two modules that the run keeps, too.
    imports = "    import helper, mine.part\n    places = [helper.__file__, mine.part.__file__, "
    script = SCRIPT.replace("    places = [", imports)
    (project / "train.py").write_text(script)
    (project / "helper.py").write_text("VALUE = 1\n")
    (project / "mine/__init__.py").touch()
    (project / "mine/part.py").write_text("VALUE = 2\n")
    pack = work / "environment.tar"
    packed = small_environment.pack(pack, "--with", str(project))
    second = virtual_slurm.node_names[1]
    with traced(virtual_slurm, second, work / "calls"):
        done = fit(work, virtual_slurm, small_environment, pack, script="project/train.py")
    root = f"/dev/shm/hpctrain-packs-{os.geteuid()}/{packed['sha256'][:32]}"
    _, ranks = returned(done)
    for _, (helper, part, *_), *_ in ranks:
        assert (helper, part) == (f"{root}/with/0/helper.py", f"{root}/with/0/mine/part.py")
    lines = (work / "calls").read_text(errors="replace").splitlines()
    assert [line for line in lines if "execve(" in line and "hpctrain.worker" in line]
    assert [line for line in lines if f'"{project}' in line] == []


@contextmanager
def traced(cluster: VirtualCluster, node: str, log: Path) -> Iterator[None]:
    """Write down which files all that a node starts asks for."""
    if shutil.which("strace") is None:
        reason = "no strace on PATH: apt-get install strace"
        pytest.fail(reason, pytrace=False) if is_all_required() else pytest.skip(reason)
    daemon = cluster.parts.slurmd(node).process()
    assert daemon is not None
    words = ["strace", "-f", "-qq", "-s", "4000", "-e", "trace=%file", "-e", "signal=none"]
    tracer = cluster.popen_on(node, [*words, "-o", str(log), "-p", str(daemon.pid)])
    looks = ["grep", "-q", "TracerPid:.*[1-9]", f"/proc/{daemon.pid}/status"]
    try:
        wait_until(lambda: cluster.run_on(node, looks).returncode == 0, what="strace", timeout_s=30)
        yield
    finally:
        # It detaches from slurmd, which goes on.
        os.killpg(tracer.pid, signal.SIGTERM)
        tracer.wait(30)


def without_end(work: Path, program: str) -> tuple[str, ...]:
    """Let a program of nodes begin, and not end; return the commands that put it there."""
    programs = work / "bin"
    programs.mkdir()
    writes = ""
    if program == "sbcast":
        # As one that is ended in the middle.
        writes = (
            "for copy; do :; done\nexport copy\nsrun --overlap --ntasks-per-node=1 "
            '-n "$SLURM_NNODES" sh -c \'echo part > "$copy"\'\n'
        )
    waits = f": > '{work}/begun'\nwhile :; do sleep 0.1; done\n"
    (programs / program).write_text(f"#!/bin/sh\n{writes}{waits}")
    (programs / program).chmod(0o755)
    return (f"export PATH='{programs}':$PATH",)


@pytest.mark.parametrize("program", ["sbcast", "tar"])
def test_a_run_that_is_asked_to_stop_does_not_wait_until_its_nodes_have_unpacked(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed: tuple[Path, dict[str, Any]],
    program: str,
) -> None:
    setup = without_end(work, program)
    process = begin(work, virtual_slurm, small_environment, packed[0], setup=setup)
    wait_until((work / "begun").exists, what=program, timeout_s=TIMEOUT_S)
    words = ("cancel", str(work / "runs/run"))
    small_environment.run("hpctrain.cli", *words, cwd=work, **virtual_slurm.environ)
    done = end(process)
    assert done.returncode == RunStoppedError.exit_code, done.stderr
    assert "the run stopped because it was asked to (hpctrain cancel), at report 0" in done.stderr
    assert events(work) == []
    for node in virtual_slurm.node_names:
        assert left_on(virtual_slurm, node) == []


def test_a_run_whose_time_is_over_does_not_wait_until_its_nodes_have_unpacked(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed: tuple[Path, dict[str, Any]],
) -> None:
    setup, config = without_end(work, "tar"), {"total_time": "00:00:10"}
    done = fit(work, virtual_slurm, small_environment, packed[0], setup=setup, **config)
    assert done.returncode == RunStoppedError.exit_code, done.stderr
    assert "its total_time='00:00:10' is used up" in done.stderr
    for node in virtual_slurm.node_names:
        assert left_on(virtual_slurm, node) == []


def test_where_sbcast_fails_one_node_reads_the_file_and_it_is_said(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed: tuple[Path, dict[str, Any]],
) -> None:
    programs = work / "bin"
    programs.mkdir()
    (programs / "sbcast").write_text("#!/bin/sh\necho 'sbcast: error: not here' >&2\nexit 1\n")
    (programs / "sbcast").chmod(0o755)
    # Some have it in their profiles: then srun passes its input to no task.
    setup = (f"export PATH='{programs}':$PATH", "export SLURM_STDINMODE=none")
    done = fit(work, virtual_slurm, small_environment, packed[0], setup=setup)
    check_ranks(done, packed)
    (event,) = events(work)
    assert event["reason"] == "sbcast: error: not here"
    # Nodes that share their memory find it there.
    assert event["by"] == ("read" if virtual_slurm.spec.mode == "flat" else "tree")
    assert len(event["reading"]) == 1
    assert event["alone"] == {}
    for node in virtual_slurm.node_names:
        assert left_on(virtual_slurm, node) == []


def test_in_an_allocation_of_the_users_it_is_the_same(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed: tuple[Path, dict[str, Any]],
) -> None:
    before = ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2")
    done = fit(work, virtual_slurm, small_environment, packed[0], *before)
    check_ranks(done, packed)
    assert len(events(work)) == 1


def test_nothing_is_left_on_nodes_of_the_job_that_a_run_does_not_use(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed: tuple[Path, dict[str, Any]],
) -> None:
    before = ("salloc", "--quiet", "--nodes=3", "--ntasks-per-node=2")
    done = fit(work, virtual_slurm, small_environment, packed[0], *before)
    check_ranks(done, packed)
    (event,) = events(work)
    assert len(event["nodes"]) == 2
    if virtual_slurm.spec.mode != "flat":
        assert (event["by"], event["reading"], event["reason"]) == ("sbcast", [], "")
    for node in virtual_slurm.node_names:
        assert left_on(virtual_slurm, node) == []


def test_a_pack_that_changes_while_the_job_waits_ends_the_run_before_it_trains(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed: tuple[Path, dict[str, Any]],
) -> None:
    pack = work / "environment.tar"
    shutil.copyfile(packed[0], pack)
    # A few bytes in the middle, when the job begins.
    damage = f"printf xxxxxxxx | dd of='{pack}' bs=1 seek=100000 conv=notrunc status=none"
    done = fit(work, virtual_slurm, small_environment, pack, setup=(damage,))
    assert done.returncode == LaunchError.exit_code, done.stderr
    assert f"the environment {pack} cannot be unpacked on " in done.stderr
    assert f"and was {packed[1]['sha256']} when the run was begun" in done.stderr
    assert Result.from_path(work / "runs/run").metrics == {}
    for node in virtual_slurm.node_names:
        assert left_on(virtual_slurm, node) == []
