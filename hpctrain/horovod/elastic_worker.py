"""``python -m hpctrain.horovod.elastic_worker FD PARENT``: it trains for a rank of an elastic run.

FD is its end of the connection to the rank, which knows all that is to be known.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from hpctrain import environ
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.horovod import installed
from hpctrain.horovod.backend import select_gpu
from hpctrain.horovod.gloo import ask_rendezvous
from hpctrain.horovod.worker_session import WorkerSession
from hpctrain.log import flush_output, log_traceback
from hpctrain.plan import spec
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.context import ActiveWorker, activate
from hpctrain.worker.parent_death import end_with
from hpctrain.worker.pinned import pin_sources
from hpctrain.worker.report_count import LeaveTraining
from hpctrain.worker.train import pack_return_value

if TYPE_CHECKING:
    from hpctrain.horovod.connections import GlooConnections
    from hpctrain.worker.train_context import TrainContext

_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


class _NoCommunicator:
    """Says what to use instead: a worker is no rank of MPI."""

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(
            "hpctrain.collective is not for elastic runs, whose workers are no ranks of MPI. Use "
            "Horovod's: hvd.barrier(), hvd.broadcast_object(value, name='...')."
        )


def main(connection: Connection) -> None:
    """Train, and say what came of it. Collective."""
    hello = connection.recv()
    sys.path[:] = hello["sys_path"]
    # A worker that replaces a dead one runs what the others run.
    pin_sources(hello["sources"], says_changes=False)
    context: TrainContext = hello["context"]
    session = WorkerSession(
        connection,
        world=context.world,
        paths=RunPaths(context.storage),
        reports=hello["first_report"],
    )
    worker = ActiveWorker(
        context=context,
        session=session,  # type: ignore[arg-type]  # all that is called of one
        comm=_NoCommunicator(),
        datasets={},
        datasets_to_split="all",
    )
    try:
        with activate(worker):
            train_loop, arguments = spec.unpack(hello["work"])
            _join(context, session.connections)
            value = train_loop(*arguments)
        said: tuple[Any, ...] = ("returned", pack_return_value(context.world, value))
    except LeaveTraining:
        said = ("left",)
    except BaseException as error:
        log_traceback(error)
        said = ("raised", _pack_exception(error))
    session.end(said)
    # What is registered for the end still happens, as in a rank.
    atexit._run_exitfuncs()
    flush_output()
    os._exit(0)


def _join(context: TrainContext, connections: GlooConnections) -> None:
    """Take part in the next round of Horovod. Collective."""
    hvd = installed.load()
    installed.check_gloo(hvd)
    select_gpu(context.gpu_ids, hostname=context.world.hostname)
    host, local_rank = environ.variable("HOROVOD_HOSTNAME"), environ.variable("HOROVOD_LOCAL_RANK")
    # The server itself says when it does not wait any longer.
    said = ask_rendezvous("GET", f"/rank_and_size/{host}:{local_rank}", timeout_s=None)
    ranks = said.split(",")
    if int(ranks[0]) < 0:
        raise LaunchError(
            f"rank {context.world.world_rank} has a new worker, but those of other ranks do not "
            f"come to go on with it: they have finished, or lost no connection within "
            f"HorovodConfig(timeout_s=...). The training function has to run its steps inside "
            f"hvd.elastic.run."
        )
    environ.export({f"HOROVOD_{name}": n for name, n in zip(_PLACE, ranks, strict=True)})
    connections.begin()
    hvd.init()
    connections.note()


def _pack_exception(error: BaseException) -> bytes:
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        content = spec.pack((error, trace), what="the exception")
        spec.unpack(content)  # a class with its own __init__ often cannot be rebuilt
    except Exception:  # whatever its own reduction raises
        same = RuntimeError(f"{type(error).__qualname__}: {error}")
        return spec.pack((same, trace), what="the exception")
    return content


if __name__ == "__main__":
    end_with(int(sys.argv[2]))
    # Slurm sends its warnings to every process of a step; the rank acts on them.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main(Connection(int(sys.argv[1])))
