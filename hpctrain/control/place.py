"""An agent's place in the tree of agents: the executor assigns it, and whom to connect to."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hpctrain import timeouts
from hpctrain.control.link import connect_once
from hpctrain.control.wire import PROTOCOL, Frame, FrameSocket, ProtocolError, encode_frame
from hpctrain.own_time import Deadline

if TYPE_CHECKING:
    import socket

    from hpctrain.control.proof import Credentials, Seal

_RETRY_INTERVAL_S = 0.2
_LOOK_INTERVAL_MS = 500


class Place(NamedTuple):
    """Where an agent is in the tree, and its connection to its parent."""

    parent: FrameSocket
    received: list[Frame]
    """What the parent has sent already."""
    is_direct: bool
    """Whether the parent is the executor."""
    answer: dict[str, Any]
    """What the executor has answered, see `hpctrain.control.root`."""


class PlaceRefusedError(Exception):
    """The executor is gone, has given this node up, or cannot use it.

    Parameters
    ----------
    message
        What has happened.
    reason
        Why the node cannot be used; empty where that is not why.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


def find_place(
    executor: str,
    credentials: Credentials,
    question: dict[str, Any],
    *,
    first: tuple[socket.socket, Seal] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> Place:
    """Ask the executor for a parent, and connect to it. Not collective.

    The executor itself is the parent of an agent that cannot reach the other one.

    Parameters
    ----------
    executor
        The address at which it was reached first.
    credentials
        What both ends of each connection know.
    question
        What the executor is to know of the agent.
    first
        A connection to the executor, if there is one.
    is_over
        Returns whether the place is not needed any more.

    Raises
    ------
    PlaceRefusedError
        If the executor refuses connections, does not answer for long, or has given the node up.
    """
    deadline = Deadline(
        timeouts.TREE_PLACE_S,
        longest_gap_s=timeouts.TCP_CONNECTION_S + timeouts.PEER_PROOF_S + 1.0,
    )
    while not (deadline.is_over or is_over()):
        try:
            connection, first = first or connect_once(executor, credentials), None
        except ConnectionRefusedError as error:
            # A process that listens refuses nothing, however busy it is.
            raise PlaceRefusedError(f"{executor}: {error}") from error
        except OSError:
            time.sleep(_RETRY_INTERVAL_S)
            continue
        frames = FrameSocket(*connection)
        frames.post(encode_frame({"op": "ask", "protocol": PROTOCOL, **question}))
        received = _await_answer(frames, deadline, is_over)
        if not received:
            frames.close()
            time.sleep(_RETRY_INTERVAL_S)
            continue
        answer = dict(received.pop(0).header)
        if answer["op"] != "placed":
            frames.close()
            raise PlaceRefusedError(
                f"{executor} has given this node up", reason=answer.get("reason", "")
            )
        if not answer["parent"]:
            return Place(frames, received, True, answer)
        frames.close()
        if (parent := _connect_to_any(answer["parent"], credentials)) is not None:
            return Place(FrameSocket(*parent), [], False, answer)
        question = {**question, "index": answer["index"], "direct": True}
    raise PlaceRefusedError(
        f"{executor} does not answer for {timeouts.describe(timeouts.TREE_PLACE_S)}"
    )


def _await_answer(
    frames: FrameSocket, deadline: Deadline, is_over: Callable[[], bool]
) -> list[Frame]:
    """Return what is received up to the first frame; empty if the connection ends."""
    poller = select.poll()
    poller.register(frames, select.POLLIN)
    while not (deadline.is_over or is_over()):
        if not poller.poll(_LOOK_INTERVAL_MS):
            continue
        try:
            received = frames.receive()
        except ProtocolError:
            return []
        if received or frames.closed:
            return received
    return []


def _connect_to_any(
    addresses: list[str], credentials: Credentials
) -> tuple[socket.socket, Seal] | None:
    for address in addresses:
        try:
            return connect_once(address, credentials)
        except OSError:
            continue
    return None
