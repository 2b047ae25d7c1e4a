"""`Ranks`: how the loop over an attempt reaches the ranks, however they were started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hpctrain.control.wire import Frame
from hpctrain.execute.rendezvous import WorkerMetadata


class Ranks(Protocol):
    """The ranks of one attempt: `WorkerGroup` started them, others were there already."""

    def __len__(self) -> int:
        """Return the number of ranks."""

    @property
    def workers(self) -> Sequence[WorkerMetadata]:
        """Where each rank lives, by rank; fewer until all of them have come."""

    @property
    def lost_nodes(self) -> Mapping[str, bool]:
        """Nodes that are lost; true if they are silent, false if their agent is gone."""

    def node_use(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what ranks use of their nodes, as `NodeMeter.read` does, where that is known."""

    @property
    def share_a_terminal(self) -> bool:
        """Whether Ctrl-C reaches all of them, and is no failure of theirs."""

    def broadcast(self, op: str, body: bytes = b"", **details: Any) -> None:
        """Send a command to every rank."""

    def poll(self, timeout_s: float) -> list[Frame]:
        """Return what ranks have sent since the last call; wait for it up to `timeout_s`."""

    def examine(self, pids: Mapping[int, int], silent: Sequence[int]) -> None:
        """Ask for a look at ranks from outside; frames ``examined`` come back."""

    def exit_status(self) -> int | None:
        """Return the exit status of what started the ranks; None while it runs or is not ours."""

    def launcher_output(self) -> str | None:
        """Return the last lines of what started the ranks; None if it is not ours."""

    def await_death_notice(self, silent: Sequence[int]) -> tuple[int, int] | None:
        """Wait until it is known how a rank died that reported nothing itself.

        Meanwhile the others can leave.

        Parameters
        ----------
        silent
            Ranks that may be it, those first whose connection ended first.

        Returns
        -------
        tuple or None
            The rank, and its wait status, where these are known; otherwise the launcher prints how
            it died. Returns at once where no launcher does.
        """
