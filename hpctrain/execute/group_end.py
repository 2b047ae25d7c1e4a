"""How the ranks of a `WorkerGroup` end: by themselves, with a notice of death, or killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from hpctrain import timeouts
from hpctrain.control.hub import Hub
from hpctrain.control.wire import Frame
from hpctrain.execute.explain import names_a_death
from hpctrain.execute.process import StepProcess
from hpctrain.execute.rank_forks import RankForks
from hpctrain.own_time import Deadline
from hpctrain.worker.leftovers import unlink_mapped_segments

_POLL_S = 0.1
_LOOK_AGAIN_S = 0.01


def stop_ranks(
    hub: Hub, step: StepProcess, take_answer: Callable[[Frame], object], *, patience_s: float
) -> None:
    """Let ranks that wait for a command leave, and wait for the step to end. Not collective.

    Parameters
    ----------
    take_answer
        Is called with the answers that come meanwhile.
    patience_s
        Seconds that they are given.
    """
    hub.send("exit")
    deadline = Deadline(patience_s)
    while step.returncode() is None and not deadline.is_over:
        for frame in hub.poll(_POLL_S):
            if frame.op == "answer":
                take_answer(frame)


def await_death_notice(
    hub: Hub, step: StepProcess, *, pids: Mapping[int, int], fork_server: RankForks | None
) -> tuple[int, int] | None:
    """Let ranks leave; wait until it is known how one died that was silent.

    Not collective. What has forked them knows at once which it was, and its wait status: these are
    returned. Otherwise srun or mpiexec prints it, once they have cleaned up, and None is returned.

    Parameters
    ----------
    pids
        Processes of the ranks that may be it, by rank.
    fork_server
        What has forked the ranks, if something has.
    """
    hub.send("end")
    deadline = Deadline(timeouts.DEATH_NOTICE_S)
    if fork_server is not None:
        for rank, pid in pids.items():
            if deadline.is_over:
                break
            if (status := fork_server.await_end(pid)) is not None:
                return rank, status
    while step.returncode() is None and not deadline.is_over:
        if names_a_death(step.last_lines()):
            break
        step.wait(_LOOK_AGAIN_S)
    return None


def end_ranks(hub: Hub) -> None:
    """Let ranks exit at once, and wait for a moment until they have. Not collective."""
    for pid in hub.local_pids:
        # It may be in MPI_Init, and is to end.
        unlink_mapped_segments(pid)
    # Ranks take a SIGTERM for Slurm's warning, and launchers are slow with SIGKILL.
    hub.send("end")
    await_exits(hub)


def await_exits(hub: Hub) -> None:
    """Wait for a moment until no rank is connected any more. Not collective."""
    deadline = Deadline(timeouts.RANKS_EXIT_S)
    while hub.num_ranks and not deadline.is_over:
        hub.poll(_LOOK_AGAIN_S)


def kill_step(
    step: StepProcess, *, are_dead: bool, has_lost_nodes: bool, fork_server: RankForks | None
) -> None:
    """Kill what is left of the step. Not collective.

    Parameters
    ----------
    are_dead
        Whether all ranks are.
    has_lost_nodes
        Whether some of it is on nodes that do not answer.
    fork_server
        What has forked the ranks, if something has.
    """
    if are_dead:
        # What is left of the launcher holds nothing, and takes a while: the next group need
        # not wait. The interpreter does, as this is no daemon.
        threading.Thread(target=step.kill).start()
        return
    step.kill(**({"patience_s": timeouts.LOST_NODE_STEP_S} if has_lost_nodes else {}))
    if fork_server is not None:
        # They are no descendants of the launcher, and end once it is gone.
        fork_server.await_idle()
