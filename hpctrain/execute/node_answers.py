"""What nodes print when they get a packed environment, and `Brought`: how they got it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpctrain.host_list import compress_hosts
from hpctrain.plan.environment_pack import ALONE, MARK, READS, READY, STEP, UNPACKS


@dataclass(frozen=True, kw_only=True)
class Brought:
    """How nodes got a packed environment."""

    nodes: tuple[str, ...]
    """The nodes."""
    by: str
    """``sbcast``; ``tree`` where nodes got it from one another; ``read`` where all that did not
    have it read the shared file themselves."""
    reading: tuple[str, ...]
    """Nodes that read the shared file."""
    why: str
    """What sbcast printed, if it failed."""
    alone: Mapping[str, str]
    """Nodes that were to get it from another one and read the shared file, and why."""
    unmounted: Mapping[str, str]
    """Nodes that cannot mount it and have unpacked it, and why."""
    seconds: float
    """How long it took."""

    def alone_by_reason(self) -> list[tuple[str, str]]:
        """Return the nodes of `alone`, in Slurm's short form, and why. Pure."""
        return _by_reason(self.alone)

    def unmounted_by_reason(self) -> list[tuple[str, str]]:
        """Return the nodes of `unmounted`, in Slurm's short form, and why. Pure."""
        return _by_reason(self.unmounted)


def _by_reason(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    found: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        found.setdefault(reason, []).append(node)
    return [(compress_hosts(nodes), reason) for reason, nodes in found.items()]


def read_node_answers(printed: str) -> dict[str, str]:
    """Return the last line of each node, after that it read the file itself. Pure."""
    found: dict[str, str] = {}
    for line in printed.splitlines():
        _, mark, rest = line.partition(MARK)
        node, _, answer = rest.partition(" ")
        if not mark or answer.startswith((ALONE, UNPACKS)):
            continue
        if found.get(node, "").startswith(READS) and answer == READY:
            answer = f"{found[node]} {READY}"
        found[node] = answer
    return found


def read_step_id(printed: str) -> str:
    """Return the id of a step that `step_argv` has printed; empty before. Pure."""
    for line in printed.splitlines():
        if words := line.partition(STEP)[2].split():
            return words[0]
    return ""


def read_reasons(printed: str, beginning: str) -> dict[str, str]:
    """Return the nodes that have printed a line with this beginning, and the rest of it. Pure."""
    found: dict[str, str] = {}
    for line in printed.splitlines():
        node, _, answer = line.partition(MARK)[2].partition(" ")
        if answer.startswith(beginning):
            found[node] = answer.removeprefix(beginning).strip()
    return found
