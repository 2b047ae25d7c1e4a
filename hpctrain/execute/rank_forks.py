"""`RankForks`: what lets the ranks of an executor be forked, wherever the fork server is."""

from __future__ import annotations

import functools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain import environ, timeouts
from hpctrain.plan.launch_plan import StepLauncher

CLIENT = str(Path(__file__).parents[1] / "worker/fork_client.py")
"""What a launcher starts in a rank's place."""
IN_SLOT = "slot"
"""In the place of what a server is to import: this one is there, with its name in the variable
`hpctrain.environ.SLOT_SERVER`, and signals are blocked."""
LEFT_OUT = "the fork server leaves out "
"""Beginning of a reason for which ranks import some modules themselves, forked with all others."""
_SYSTEM_PYTHON = "/usr/bin/python3"
_OLDEST_MINOR = 9
# Where the variable does not come, as with srun --export=NONE, the file is read.
_RUN_CLIENT = """\
import os, sys
code = os.environ.pop({variable!r}, "")
try:
    import _signal, _socket, select
except ImportError:
    os.execv(sys.argv[5], sys.argv[5:])
exec(code or open({client!r}).read())
"""


@dataclass(frozen=True, kw_only=True)
class RankCommand:
    """What starts an ordinary rank, and where."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    """Of the launcher."""
    client: str
    """File of the client, where the ranks are."""
    is_alone: bool
    """Whether each rank has its node to itself."""


class RankForks(ABC):
    """Lets ranks be forked from a process that has imported their modules.

    It is an offer: a rank that is not forked starts as an ordinary process.
    """

    may_restart = False
    """Whether its ranks may have to start again."""

    def __init__(self) -> None:
        self._reasons: list[str] = []
        self._trusts_nodes = True

    @abstractmethod
    def start(self) -> None:
        """Start a server where this process has to, and do not wait for its imports."""

    def tries(self, launcher: StepLauncher) -> bool:
        """Return whether ranks of a launcher are forked. Others than MPICH's are not tried."""
        return launcher.kind == "hydra"

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
        return self._argv_of(
            RankCommand(argv=command, environment=environment, client=client, is_alone=are_alone)
        )

    @abstractmethod
    def _argv_of(self, rank: RankCommand) -> list[str]:
        """Return what a launcher is to start for a rank."""

    def prepare_restart(self, imported: Collection[str]) -> None:  # noqa: B027
        """Let ranks of the next attempt be forked with modules that those of this one imported.

        Not waited for. Never raises. By default nothing happens.

        Parameters
        ----------
        imported
            All that is known of so far.
        """

    def note(self, reasons: Iterable[str]) -> None:
        """Take why ranks were not forked, as they have sent it."""
        self._reasons += reasons

    def note_failed_start(self) -> None:
        """Use nothing of other nodes' own from now on: one of them may lack it."""
        self._trusts_nodes = False

    def take_reasons(self) -> list[str]:
        """Return why ranks were not forked, as far as that was not returned before."""
        reasons, self._reasons = self._reasons, []
        return list(dict.fromkeys(reasons))

    def await_end(self, pid: int) -> int | None:
        """Wait until a rank has ended; return its wait status, or None if that is not known.

        By default it never is: what has started the ranks prints it.

        Parameters
        ----------
        pid
            Of the rank, on this machine.
        """
        return None

    @abstractmethod
    def await_idle(self) -> bool:
        """Wait until no forked rank is left; return whether that is so."""

    @abstractmethod
    def close(self) -> None:
        """End the server where it is of this process."""


def left_out(modules: Iterable[str], why: str) -> str:
    """Return the reason for which ranks import some modules themselves. Pure.

    Parameters
    ----------
    modules
        What the fork server does without.
    why
        What came of them.
    """
    return f"{LEFT_OUT}{', '.join(modules)}: {why}"


def client_argv(
    name: str,
    command: Sequence[str],
    *,
    client: str = CLIENT,
    asked: str = "",
    python: str = "",
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
    python
        The nodes' own Python, for the code of `client_variables`; empty is that of the ranks.
    """
    limits = (f"{timeouts.FORK_SERVER_S:g}", f"{timeouts.FORK_CLIENTS_S:g}")
    words = [name, *limits, asked, *command]
    if not python:
        return [command[0], "-I", "-S", client, *words]
    code = _RUN_CLIENT.format(variable=environ.FORK_CLIENT, client=client)
    return [python, "-I", "-S", "-c", code, *words]


def client_variables(argv: Sequence[str]) -> dict[str, str]:
    """Return what a launcher needs in its environment for a command of `client_argv`.

    Not collective. With the nodes' own Python that is the code of the client, so that no process
    reads it from the shared filesystem.
    """
    is_code = [*argv[3:4]] == ["-c"]
    return {environ.FORK_CLIENT: Path(CLIENT).read_text()} if is_code else {}


@functools.cache
def system_python() -> str:
    """Return the Python of this machine's operating system; empty if it is too old for the client.

    Not collective. Its files are on the node itself, as a rule: those of an environment are opened
    by each process anew.
    """
    found = re.fullmatch(r"python3\.(\d+)", os.path.basename(os.path.realpath(_SYSTEM_PYTHON)))
    is_new = found is not None and int(found[1]) >= _OLDEST_MINOR
    return _SYSTEM_PYTHON if is_new and os.access(_SYSTEM_PYTHON, os.X_OK) else ""
