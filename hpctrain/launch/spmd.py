"""Every process already is a rank: attach to the MPI world that exists.

Rank 0 does the executor's part in a thread (`hpctrain.launch.coordinator`). Nothing is started, and
nothing is restarted: that is up to the user, who started the ranks.
"""

from __future__ import annotations

import atexit
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpctrain import environ, timeouts
from hpctrain.config import ScalingConfig
from hpctrain.control.link import Link
from hpctrain.control.proof import Credentials
from hpctrain.control.wire import Frame
from hpctrain.errors import ConfigError, HpctrainError, LaunchError, TrainingFailedError
from hpctrain.execute.attempt_start import AttemptStart
from hpctrain.launch.begin import begin_or_find
from hpctrain.launch.coordinator import Coordinator
from hpctrain.launch.existing import Existing
from hpctrain.launch.node_relay import (
    CoordinatorAddress,
    NodeRelay,
    connect_rank,
    connect_to_rank_0,
)
from hpctrain.launch.record import write_plan_and_spec
from hpctrain.launch.request import Request, Submission, make_plan
from hpctrain.launch.run_spec import make_spec
from hpctrain.log import drain_output, log, log_traceback
from hpctrain.plan import spec
from hpctrain.plan.gpus import check_gpus_of_ranks
from hpctrain.printable import describe_error
from hpctrain.result import Result
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.trust import check_run_directory
from hpctrain.temporary_checkpoint import remove_dead_checkpoints
from hpctrain.uncaught import exit_code
from hpctrain.worker import mpi
from hpctrain.worker.bootstrap import hello_details, join_world, see_gpus
from hpctrain.worker.introduction import introduce
from hpctrain.worker.leftovers import remove_dead_segments, remove_dead_segments_of_step
from hpctrain.worker.linked_training import LinkedTraining
from hpctrain.worker.train import export_thread_counts, settle
from hpctrain.world import World

if TYPE_CHECKING:
    from hpctrain.control.proof import Seal
    from hpctrain.worker.mpi import Comm

# Rank 0 shows why, and an abort ends it too.
_RANK_0_FIRST_S = 2.0

_joined: tuple[World, Comm] | None = None
# A separate communicator: no collective of the training function can match the final barrier.
_comm_to_leave: Comm | None = None
_failed: BaseException | None = None


@dataclass(frozen=True, kw_only=True)
class _Opening:
    """What rank 0 sends the others before they begin."""

    paths: RunPaths
    start: AttemptStart | None
    """None: there is nothing to run, see `result`."""
    content: bytes
    """The run's `RunSpec`."""
    coordinator: CoordinatorAddress | None = None
    """Where ranks reach it."""
    result: Result | None = None


def fit_spmd(request: Request) -> Result:
    """Run a request on the ranks that exist. Collective.

    Raises
    ------
    ConfigError, LaunchError
        If something is impossible; the same on every rank.
    TrainingFailedError
        If a rank failed, on every rank that can still raise. Those that hang in a collective are
        ended after some seconds.
    """
    world, comm = _join(request.scaling_config)
    seen = comm.gather(see_gpus(world))
    coordinator: Coordinator | None = None
    opening: Any = None
    if world.world_rank == 0:
        try:
            assert seen is not None
            check_gpus_of_ranks(seen, request.scaling_config.num_gpus_per_worker)
            opening, coordinator = _open(request.named(), world)
        except (HpctrainError, SystemExit) as error:
            opening = error
        except Exception as error:
            # A full disk: the others wait for a message all the same.
            opening = LaunchError(
                f"rank 0 cannot open the run in {request.run_config.storage_path}: "
                f"{describe_error(error)}"
            )
            opening.__cause__ = error
    opening = comm.bcast(opening)
    if isinstance(opening, BaseException):
        raise _shown_by_rank_0(opening, world)
    if opening.result is not None:
        return Result(
            path=opening.result.path, status=opening.result.status, error=opening.result.error
        )
    if coordinator is not None:
        coordinator.start()
    try:
        result = _run_rank(opening, replace(world, attempt=opening.start.attempt), comm)
    except BaseException as error:
        global _failed
        _failed = error
        # Everything is recorded. The coordinator thread keeps running while this process shows the
        # error, before a rank that hangs aborts all of them.
        raise
    if coordinator is not None:
        coordinator.join()
    return result


def _join(scaling: ScalingConfig) -> tuple[World, Comm]:
    """Join the world once; a second ``fit()`` uses the same."""
    fewest, most = scaling.min_workers, scaling.max_workers
    global _joined, _comm_to_leave
    if _joined is None:
        if mpi.initialized_world_size() is None:
            remove_dead_segments_of_step()
        _joined = join_world(attempt=0, fewest=fewest, most=most, started_elsewhere=True)
        _comm_to_leave = _joined[1].Dup()
        atexit.register(_leave)
        if _joined[0].local_rank == 0:
            remove_dead_checkpoints(tempfile.gettempdir())
            if (job_id := environ.variable("SLURM_JOB_ID")) is not None:
                remove_dead_segments(job_id)
    world, _ = _joined
    if not fewest <= world.world_size <= most:
        raise ConfigError(
            f"num_workers={scaling.num_workers}, but this process is one of {world.world_size} "
            f"ranks. Start as many ranks as workers, or set num_workers={world.world_size}."
        )
    return _joined


def _leave() -> None:
    """Leave MPI at the end of the script: together after success, at once after a failure."""
    if _failed is not None:
        # An abort ends also what a launcher has not read yet of rank 0's output.
        drain_output()
        assert _joined is not None
        assert _comm_to_leave is not None
        # The abort ends all of them, also one that is still printing why it failed.
        mpi.wait_barrier(_comm_to_leave, timeout_s=timeouts.SPMD_END_S)
        if _joined[0].world_rank > 0:
            # Rank 0 aborts first. Where it hangs in a collective, it shows why after as long.
            time.sleep(timeouts.SPMD_END_S)
        # MPI_Finalize would wait for ranks that will not come.
        mpi.abort(exit_code(_failed))
    mpi.finalize()


def _open(request: Request, world: World) -> tuple[_Opening, Coordinator | None]:
    """Do what the user's process does in the other homes. Rank 0 only."""
    plan, site = make_plan(request, "spmd")
    submission = Submission(request=request, plan=plan, site=site, spec=make_spec(request, plan))
    if environ.dry_run_requested():
        from hpctrain.launch.dry_run import print_plan

        print_plan(submission)
        raise SystemExit(0)
    check_run_directory(request.paths.root)
    coordinator: Coordinator | None = None

    def begin(changes: list[str]) -> None:
        nonlocal coordinator
        write_plan_and_spec(submission)
        coordinator = Coordinator(submission, world)

    existing = begin_or_find(submission, begin)
    if existing is Existing.FOLLOW:
        raise ConfigError(
            f"run {request.run_config.name!r} is running in another process already, and ranks "
            f"cannot follow it. Choose another RunConfig(name=...), or: hpctrain attach "
            f"{request.paths.root}"
        )
    if coordinator is None:
        result = Result.from_path(request.paths.root)
        return _Opening(paths=request.paths, start=None, content=b"", result=result), None
    opening = _Opening(
        paths=request.paths,
        start=coordinator.attempt_start,
        content=submission.spec_content,
        coordinator=coordinator.ranks.address,
    )
    return opening, coordinator


class _RunError:
    """Rank 0's error of a run that has failed, and the end of ranks that do not receive it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._body = b""
        self._received = threading.Event()
        self._noticed = threading.Event()

    @property
    def is_received(self) -> bool:
        """Whether rank 0 has sent its error, or is gone."""
        return self._received.is_set()

    def receive(self, frame: Frame) -> None:
        """Take rank 0's error in; called from the thread of the link."""
        self._body = frame.body
        self._received.set()
        # The training function may hang in a collective that a failed peer will not join.
        threading.Thread(target=self._end_unless_noticed, daemon=True).start()

    def lose_rank_0(self) -> None:
        """Note that rank 0 is gone; called from the thread of the link."""
        self._received.set()
        self._end_unless_noticed()

    def error(self, otherwise: str) -> Exception:
        """Return the error to raise here, after a moment in which rank 0 can send it."""
        self._received.wait(timeouts.SPMD_END_S)
        self._noticed.set()
        if not self._body:
            return TrainingFailedError(otherwise)
        error: Exception = _shown_by_rank_0(spec.unpack(self._body), self._world)
        return error

    def _end_unless_noticed(self) -> None:
        is_first = self._world.world_rank == 0
        if not self._noticed.wait(
            timeouts.SPMD_END_S if is_first else timeouts.SPMD_END_S + _RANK_0_FIRST_S
        ):
            code = TrainingFailedError.exit_code
            if is_first and self._body:
                # Rank 0 hangs where it is, so it cannot raise the error that it shows for all.
                error = spec.unpack(self._body)
                log_traceback(error.describe())
                code = exit_code(error)
            else:
                log(f"the run has failed elsewhere; rank {self._world.world_rank} hangs, and ends")
            mpi.abort(code)


def _run_rank(opening: _Opening, world: World, comm: Comm) -> Result:
    """Do what a rank's own process does in the other homes. Collective."""
    run_spec = spec.RunSpec.from_bytes(opening.content)
    start, settings, coordinator = opening.start, run_spec.settings, opening.coordinator
    assert start is not None
    assert coordinator is not None
    export_thread_counts(settings)
    run_error = _RunError(world)
    credentials = Credentials(
        coordinator.secret, run=str(opening.paths.root), attempt=start.attempt
    )
    relay: NodeRelay | None = None
    if world.local_rank == 0 and world.node_rank > 0:
        relay = NodeRelay(coordinator, credentials, world)
    _await_ranks(comm)
    link = _connect(coordinator, credentials, world, run_error)
    training = LinkedTraining(
        link,
        world=world,
        paths=opening.paths,
        run_spec=run_spec,
        first_report=start.first_report,
        checkpoint=start.checkpoint,
    )
    introduce(link, opening.paths, world)
    previous = _forward_signals(link)
    try:
        _await_ranks(comm)
        settle(settings)
        training.run(comm)
        answer = link.next_command()
    except BaseException as error:
        raise run_error.error(training.post_failure(error)) from error
    finally:
        if previous is not None:
            signal.signal(signal.SIGUSR2, previous)
    if answer is None:
        raise run_error.error("rank 0 is gone")
    link.post("bye")
    link.close()
    if relay is not None:
        # Other ranks of the node may not have left yet.
        relay.join(timeout_s=timeouts.SPMD_END_S)
    result: Result = spec.unpack(answer.body)
    if result.error is not None:
        raise _shown_by_rank_0(result.error, world)
    return result


def _connect(
    coordinator: CoordinatorAddress, credentials: Credentials, world: World, run_error: _RunError
) -> Link:
    """Return the link of this rank, over which rank 0 sends its error. Not collective."""
    sock, seal = connect_rank(coordinator, credentials, world)
    is_relayed = seal is None and world.node_rank > 0

    def lose() -> None:
        if not is_relayed or run_error.is_received:
            run_error.lose_rank_0()
            return
        # Either rank 0 is gone, or the rank through which this one is connected; then rank 0 can
        # still send why the run has failed.
        try:
            again = connect_to_rank_0(coordinator, credentials, timeout_s=timeouts.SPMD_END_S)
        except LaunchError:
            run_error.lose_rank_0()
        else:
            open_link(*again, on_lost=run_error.lose_rank_0).introduce(
                world.world_rank, hello_details(world)
            )

    def open_link(sock: socket.socket, seal: Seal | None, on_lost: Callable[[], None]) -> Link:
        link = Link(sock, attempt=world.attempt, on_lost=on_lost, seal=seal)
        link.handle("run-failed", run_error.receive)
        return link

    return open_link(sock, seal, lose)


def _shown_by_rank_0(error: Any, world: World) -> Any:
    """Return an error that all ranks raise, and one of them shows. Not collective."""
    if isinstance(error, HpctrainError):
        error.is_shown_elsewhere = world.world_rank > 0
    return error


def _await_ranks(comm: Comm) -> None:
    """Wait until every rank has come here: first each node listens, then each rank is connected.

    Collective. mpi4py keeps Python's lock in the first collective of objects on a communicator,
    which it duplicates for it. In a training function that begins with one, rank 0 would wait there
    for ranks whose connections its coordinator, a thread, could not accept.

    Raises
    ------
    LaunchError
        If some of them are not in time; these log why.
    """
    if not mpi.wait_barrier(comm, timeout_s=timeouts.SPMD_RANKS_S):
        raise LaunchError(
            f"not all {comm.size} ranks have reached rank 0 after "
            f"{timeouts.describe(timeouts.SPMD_RANKS_S)}. Those that have not say why in their "
            f"output."
        )


def _forward_signals(link: Link) -> Any:
    """Pass SIGUSR2 on to the executor; return the handler that was there, None outside main."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGUSR2, lambda *_: link.post_signal("SIGUSR2"))
