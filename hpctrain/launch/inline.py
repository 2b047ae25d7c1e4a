"""One rank in this interpreter: breakpoints work, nothing is started."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpctrain.errors import ConfigError, HpctrainError, WorkerError
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.attempt_loop import AttemptLoop
from hpctrain.execute.attempt_start import AttemptStart
from hpctrain.execute.preemption import Preemption
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.frames import format_user_traceback
from hpctrain.launch.inline_ranks import InlineChannel, InlineRanks, StopAtOnce
from hpctrain.launch.interrupt import explain_interrupt
from hpctrain.launch.only_attempt import begin_only_attempt
from hpctrain.launch.request import Submission
from hpctrain.printable import describe_error
from hpctrain.rundir.states import RunEvent
from hpctrain.temporary_checkpoint import remove_dead_checkpoints
from hpctrain.uncaught import show_as
from hpctrain.worker.report import Session
from hpctrain.worker.train import pack_return_value, run_training
from hpctrain.world import SerialComm, World

# Of its own thread a callback may call fit() at the end of a run.
_trains = threading.RLock()


@contextmanager
def alone_in_interpreter(name: str | None) -> Iterator[None]:
    """Keep other runs from this interpreter, from before a run begins to its end. Not collective.

    What a training function calls, such as ``report()``, finds its run by the process.

    Raises
    ------
    ConfigError
        If another thread has one.
    """
    if not _trains.acquire(blocking=False):
        raise ConfigError(
            f"another run with num_workers=0 trains in this interpreter, in another thread: {name} "
            f"cannot. Run one after the other, or use num_workers=1, whose rank is a process of "
            f"its own."
        )
    try:
        yield
    finally:
        _trains.release()


def run_inline(submission: Submission) -> None:
    """Run a request in this interpreter, on one rank.

    Not collective. An exception of the training function is raised as it is, so that a debugger
    stops where it happened; the run is marked failed. Its ``sys.exit()`` is a WorkerError, as on
    ranks that are processes: the script would end with it, and show nothing.
    """
    remove_dead_checkpoints(tempfile.gettempdir())
    recorder, preemption, start = begin_only_attempt(submission)
    with recorder.run_record.kept_alive():
        _run_attempt(submission, recorder, preemption, start)


def _run_attempt(
    submission: Submission, recorder: Recorder, preemption: Preemption, start: AttemptStart
) -> None:
    request, run_record = submission.request, recorder.run_record
    world = World(
        attempt=start.attempt,
        world_rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        num_nodes=1,
        hostname=socket.gethostname(),
    )
    run_record.advance(RunEvent.JOINED, world_size=1, nodes=(world.hostname,), phase="training")
    ranks = InlineRanks()
    attempt = AttemptExecutor(ranks, first_report=start.first_report)
    loop = AttemptLoop(
        recorder,
        attempt,
        preemption=preemption,
        stopping=StopAtOnce(recorder, attempt, ranks),
        failure_config=request.run_config.failure_config,
        may_end_hangs=False,
    )
    channel = InlineChannel(attempt, loop)
    session = ranks.session = Session(
        world=world,
        paths=request.paths,
        channel=channel,
        first_report=start.first_report,
        checkpoint=start.checkpoint,
        commit_timeout_s=request.run_config.sync_config.sync_timeout,
        in_background=False,
    )
    error: BaseException | None = None
    try:
        value = run_training(
            submission.spec,
            paths=request.paths,
            session=session,
            comm=SerialComm(),
            on_phase=channel.enter,
        )
        channel.done(pack_return_value(world, value), notified=session.was_notified)
        loop.conclude()
        recorder.finish_validations(preemption.step)
    except SystemExit as raised:
        tracker, checkpoint = attempt.tracker, recorder.checkpoint_path()
        error = _as_failure(raised, tracker, world, checkpoint=checkpoint)
        assert error is not None
        error.__cause__ = raised
    except BaseException as raised:
        error = raised
        raise
    finally:
        recorder.end_attempt(error=error, reports=attempt.tracker.reports)
        failure = _as_failure(error, attempt.tracker, world, checkpoint=recorder.checkpoint_path())
        recorder.end(failure)
        if isinstance(error, KeyboardInterrupt):
            explain_interrupt(error, submission, recorder.checkpoint_path())
        elif error is not None and failure is not error:
            show_as(error, f"hpctrain: {failure}")
    if error is not None:
        raise error


def _as_failure(
    error: BaseException | None, tracker: AttemptTracker, world: World, *, checkpoint: Path | None
) -> BaseException | None:
    """Return what is written down of an exception of the training function."""
    if error is None or isinstance(error, (HpctrainError, KeyboardInterrupt)):
        return error
    where = f"after report {tracker.reports}" if tracker.reports else f"in phase {tracker.phase}"
    return WorkerError(
        f"rank 0 of 1 on {world.hostname} failed {where}: {describe_error(error)}\n"
        f"  Last complete checkpoint: {checkpoint or 'none'}\n\n"
        f"{format_user_traceback(error, HpctrainError)}",
        rank=0,
        hostname=world.hostname,
        worker_failures={0: error},
    )
