"""`RankForks`: what lets the ranks of an executor be forked, wherever the fork server is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpctrain import timeouts
from hpctrain.plan.launch_plan import StepLauncher

CLIENT = str(Path(__file__).parents[1] / "worker/fork_client.py")
"""What a launcher starts in a rank's place."""
IN_SLOT = "slot"
"""In the place of what a server is to import: this one is there, and signals are blocked."""


class RankForks(ABC):
    """Lets ranks be forked from a process that has imported their modules.

    It is an offer: a rank that is not forked starts as an ordinary process.
    """

    def __init__(self) -> None:
        self._reasons: list[str] = []

    @abstractmethod
    def start(self) -> None:
        """Start a server where this process has to, and do not wait for its imports."""

    @abstractmethod
    def tries(self, launcher: StepLauncher) -> bool:
        """Return whether ranks of a launcher are forked."""

    @abstractmethod
    def command(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        client: str = CLIENT,
        are_alone: bool = False,
    ) -> list[str]:
        """Return what a launcher is to start for the command of a rank.

        Parameters
        ----------
        command
            Of an ordinary rank.
        environment
            Of the launcher.
        client
            File of the client, where the ranks are.
        are_alone
            Whether each rank has its node to itself.
        """

    def note(self, reasons: Iterable[str]) -> None:
        """Take why ranks were not forked, as they have sent it."""
        self._reasons += reasons

    def take_reasons(self) -> list[str]:
        """Return why ranks were not forked, as far as that was not returned before."""
        reasons, self._reasons = self._reasons, []
        return list(dict.fromkeys(reasons))

    @abstractmethod
    def await_idle(self) -> bool:
        """Wait until no forked rank is left; return whether that is so."""

    @abstractmethod
    def close(self) -> None:
        """End the server where it is of this process."""


def client_argv(
    name: str, command: Sequence[str], *, client: str = CLIENT, asked: str = ""
) -> list[str]:
    """Return the command of a fork client. Not collective.

    Parameters
    ----------
    name
        Of the server's socket.
    command
        Of an ordinary rank.
    client
        File of the client.
    asked
        What the server of a step is to import; empty where the server is there, and `IN_SLOT` in
        the step of a slot.
    """
    limits = (f"{timeouts.FORK_SERVER_S:g}", f"{timeouts.FORK_CLIENTS_S:g}")
    return [command[0], "-I", "-S", client, name, *limits, asked, *command]
