"""Faults from outside a run: of its files, its processes, its job, its nodes.

Each act prepares or does its deed up to the ``yield``, while the process that reached the point
waits there, and goes on afterwards, while the run does.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.testing.chaos.scene import Scene
from hpctrain.testing.slurm import ClusterError
from hpctrain.testing.slurm.processes import POLL_INTERVAL_S, wait_until

_CUT_S = 3.0
_FULL_S = 3.0
# Longer than the chaos suite waits for a silent node.
_SUSPENDED_S = 9.0
_SUSPENSION_PATIENCE_S = 20.0
_AWAY_S = 1.0
_PREEMPT_PATIENCE_S = 40.0
_REQUEUE_PATIENCE_S = 40.0
_NOTICE_PATIENCE_S = 60.0
_COMMIT_PATIENCE_S = 10.0
_JOB_END_PATIENCE_S = 20.0
_SAVE_S = 6.0
_ANSWER_PATIENCE_S = 30.0


def flip_bit(scene: Scene) -> Iterator[None]:
    """Flip a bit of the newest checkpoint, then kill the rank."""
    path = _choose_file(scene)
    content = bytearray(path.read_bytes())
    place = int(scene.fault.amount * len(content))
    content[place] ^= 1 << (place % 8)
    path.write_bytes(content)
    scene.process(scene.fault.point.role).send(signal.SIGKILL)
    yield


def truncate(scene: Scene) -> Iterator[None]:
    """Cut off the end of a file of the newest checkpoint, then kill the rank."""
    path = _choose_file(scene)
    os.truncate(path, int(scene.fault.amount * path.stat().st_size))
    scene.process(scene.fault.point.role).send(signal.SIGKILL)
    yield


def fill_storage(scene: Scene) -> Iterator[None]:
    """Fill the storage to its last byte; free it when the rank has felt it."""
    rank = scene.process(scene.fault.point.role)
    filler = _fill(scene)
    yield
    try:
        wait_until(lambda: rank not in scene.processes(), what="the rank to fail", timeout_s=60)
    finally:
        filler.unlink()


def fill_storage_briefly(scene: Scene) -> Iterator[None]:
    """Fill the storage to its last byte; free it some seconds later in any case."""
    filler = _fill(scene)
    yield
    try:
        time.sleep(_FULL_S)
    finally:
        filler.unlink()


def kill_executor(scene: Scene) -> Iterator[None]:
    """Kill the executor."""
    scene.process(f"{scene.trial_prefix}executor").send(signal.SIGKILL)
    yield


def kill_supervisor(scene: Scene) -> Iterator[None]:
    """Kill the supervisor, which ends the job."""
    executor = scene.process("executor")
    scene.process("supervisor").send(signal.SIGKILL)
    # A run of seconds would be over before Slurm has ended its job.
    wait_until(
        lambda: executor not in scene.processes(),
        what="Slurm to end the job",
        timeout_s=_JOB_END_PATIENCE_S,
    )
    yield


def requeue(scene: Scene) -> Iterator[None]:
    """Let Slurm requeue the job, without a warning."""
    _requeue(scene, "requeue")
    yield


def requeue_and_hold(scene: Scene) -> Iterator[None]:
    """Let Slurm requeue the job, without a warning, and release it once it is queued."""
    job_id = _requeue(scene, "requeuehold")
    yield
    wait_until(
        lambda: _job_state(scene, job_id) == "PENDING",
        what=f"job {job_id} to be held",
        timeout_s=_REQUEUE_PATIENCE_S,
    )
    _slurm(scene, "scontrol", "release", job_id)


def suspend(scene: Scene) -> Iterator[None]:
    """Suspend the job, for longer than a silent node is waited for, and resume it."""
    job_id = scene.job_id()
    _slurm(scene, "scontrol", "suspend", job_id)
    wait_until(
        lambda: _job_state(scene, job_id) == "SUSPENDED",
        what=f"job {job_id} to be suspended",
        timeout_s=_SUSPENSION_PATIENCE_S,
    )
    time.sleep(_SUSPENDED_S)
    _slurm(scene, "scontrol", "resume", job_id)
    yield


def warn(scene: Scene) -> Iterator[None]:
    """Send the job what Slurm sends before the time limit."""
    _slurm(scene, "scancel", "--signal=USR2", scene.job_id())
    yield


def preempt(scene: Scene) -> Iterator[None]:
    """Submit a job that takes all nodes, in a partition of higher priority."""
    nodes = len(scene.slurm().node_names)
    job = ["sbatch", "--partition=high", f"--nodes={nodes}", "--exclusive", "--output=/dev/null"]
    preempted = scene.job_id()
    _slurm(scene, *job, "--wrap=sleep 1")
    # A run of seconds would be over before the grace time of the partition is.
    wait_until(
        lambda: _job_state(scene, preempted) != "RUNNING",
        what=f"job {preempted} to be preempted",
        timeout_s=_PREEMPT_PATIENCE_S,
    )
    yield


def restart_controller(scene: Scene) -> Iterator[None]:
    """Kill slurmctld, and start it again a second later."""
    began = max(status.started_at for status in _statuses(scene))
    saved = scene.slurm().state_dir / "ctld" / "job_state"
    # It writes down what has happened at most 5 s later (SAVE_MAX_WAIT in its source), and would
    # forget a job that has just begun.
    written_by = time.monotonic() + _SAVE_S
    while saved.stat().st_mtime <= began and time.monotonic() < written_by:
        time.sleep(POLL_INTERVAL_S)
    scene.slurm().kill_controller()
    job_id = scene.job_id()
    yield
    time.sleep(_AWAY_S)
    scene.slurm().start_controller()
    # A step that is asked for before the nodes have answered the new slurmctld is put off until
    # another step of the job ends, or else for the 60 to 69 s after which srun asks again. This one
    # ends at once; where the job is over already, there is none.
    wait_until(
        lambda: scene.slurm().status().ready,
        what="the nodes to answer the new slurmctld",
        timeout_s=_ANSWER_PATIENCE_S,
    )
    step = ["srun", f"--jobid={job_id}", "--overlap", "--mpi=none", "--nodes=1", "--ntasks=1"]
    scene.slurm().run_on("head", [*step, "--immediate=5", "true"], timeout_s=30)


def power_off(scene: Scene) -> Iterator[None]:
    """Take the power from the node of the last rank, and give it back when all have noticed."""
    yield from _without_power(scene, _nodes(scene)[-1])


def power_off_executor(scene: Scene) -> Iterator[None]:
    """Take the power from the node of the executor, which is the first."""
    yield from _without_power(scene, _nodes(scene)[0])


def cut_network(scene: Scene) -> Iterator[None]:
    """Take a node off the network for 3 seconds, but not the executor's."""
    node = _nodes(scene)[-1]
    scene.slurm().unplug(node)
    yield
    time.sleep(_CUT_S)
    scene.slurm().plug(node)


def _requeue(scene: Scene, verb: str) -> str:
    """Let Slurm end the job and queue it again; return its number."""
    rank, job_id = scene.process(scene.fault.point.role), scene.job_id()
    _slurm(scene, "scontrol", verb, job_id)
    # A run of seconds would be over before Slurm has ended its job.
    wait_until(
        lambda: rank not in scene.processes(),
        what=f"Slurm to end job {job_id}",
        timeout_s=_REQUEUE_PATIENCE_S,
    )
    return job_id


def _fill(scene: Scene) -> Path:
    """Fill the storage; return what fills it."""
    filler = scene.folder / "storage" / ".filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            _write_until_full(file.fileno(), size)
    return filler


def _write_until_full(descriptor: int, size: int) -> None:
    try:
        while os.write(descriptor, bytes(size)):
            pass
    except OSError:
        return


def _choose_file(scene: Scene) -> Path:
    """Return a file of the newest complete checkpoint, and note that it is damaged."""
    wait_until(
        lambda: bool(_checkpoints(scene)),
        what=f"a checkpoint in {scene.storage}",
        timeout_s=_COMMIT_PATIENCE_S,
    )
    newest = _checkpoints(scene)[-1]
    scene.damaged[str(newest.relative_to(scene.storage))] = time.time()
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    return files[int(scene.fault.amount * len(files))]


def _checkpoints(scene: Scene) -> list[Path]:
    found = (
        path for root in scene.runs() for path in root.glob("checkpoints/*") if path.name.isdigit()
    )
    return sorted(found, key=lambda path: int(path.name))


def _statuses(scene: Scene) -> list[RunStatus]:
    found = (read_status(RunPaths(root)) for root in scene.runs())
    return [status for status in found if status is not None]


def _nodes(scene: Scene) -> tuple[str, ...]:
    return next(status.nodes for status in _statuses(scene) if status.nodes)


def _without_power(scene: Scene, node: str) -> Iterator[None]:
    cluster, job_id = scene.slurm(), scene.job_id()
    attempt = max(status.attempt for status in _statuses(scene))
    cluster.power_off(node)
    try:
        yield
        cluster.wait_for_state(node, "down", timeout_s=_NOTICE_PATIENCE_S)
        # A machine takes minutes to boot; a virtual node would answer before the run is given up.
        wait_until(
            lambda: (
                max(status.attempt for status in _statuses(scene)) > attempt
                or _job_state(scene, job_id) != "RUNNING"
            ),
            what="the run to leave the node",
            timeout_s=_NOTICE_PATIENCE_S,
        )
    finally:
        cluster.power_on(node)


def _job_state(scene: Scene, job_id: str) -> str:
    return _slurm(scene, "squeue", "--noheader", "--format=%T", f"--job={job_id}").strip()


def _slurm(scene: Scene, *argv: str) -> str:
    answer = scene.slurm().run_on("head", argv, timeout_s=30)
    if answer.returncode != 0:
        raise ClusterError(f"{' '.join(argv)}: {answer.stderr.strip()}")
    return answer.stdout
