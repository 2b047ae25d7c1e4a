"""Hosts of a hostfile, or of a job of PBS, LSF or Grid Engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hpctrain.errors import ConfigError

_LINE = re.compile(
    # "node1"; "node1:4" of MPICH; "node1 slots=4" of Open MPI; "node1 4" of Grid Engine.
    r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^-\s:=,][^\s:=,]*)(?::(?P<colon>\d+))?"
    r"(?:\s+(?P<plain>\d+)(?=\s|$))?(?P<options>(?:\s+\S+)*)"
)
_SLOTS = re.compile(r"(?<!\S)slots?\s*=\s*(\d+)")


@dataclass(frozen=True, kw_only=True)
class Host:
    """One machine, and its number of slots for ranks."""

    name: str
    slots: int | None
    """Number of slots; None if unknown."""


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a file.

    Not collective.

    Raises
    ------
    ConfigError
        If it cannot be read, or is not a list of hosts.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"hostfile {path} cannot be read: {error}. It is a text file with a host a line, such "
            f"as 'node1 slots=4' or 'node1:4'."
        ) from error
    return parse_hostfile(text, path=str(path))


def parse_hostfile(text: str, *, path: str) -> tuple[Host, ...]:
    r"""Return the hosts of a hostfile, in the order in which they first appear. Pure.

    Not collective. It parses the hostfiles of MPICH and Intel MPI (``node1:4``), Open MPI (``node1
    slots=4``), the node files of PBS and LSF (a line a slot) and that of Grid Engine (``node1 4
    queue processors``). Lines of one host add up. If no line has a number and no host is named
    twice, the number of slots is unknown.

    Parameters
    ----------
    path
        Its name, for errors.

    Raises
    ------
    ConfigError
        With the invalid line.

    Examples
    --------
    >>> [(host.name, host.slots) for host in parse_hostfile("n1:2\nn2\nn2\n", path="hosts")]
    [('n1', 2), ('n2', 2)]
    >>> [(host.name, host.slots) for host in parse_hostfile("n1\nn2\n", path="hosts")]
    [('n1', None), ('n2', None)]
    """
    slots: dict[str, int] = {}
    is_counted = False
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        count = None if match is None else _count(match)
        if match is None or count == 0:
            raise ConfigError(
                f"hostfile {path}, line {number}: {content[:80]!r} is not a host with at least one "
                f"slot. Write 'node1', 'node1:4' or 'node1 slots=4'."
            )
        name = match["name"].strip("[]")
        is_counted = is_counted or count is not None or name in slots
        slots[name] = slots.get(name, 0) + (count or 1)
    if not slots:
        raise ConfigError(f"hostfile {path} names no host. Write one a line: 'node1 slots=4'.")
    return tuple(
        Host(name=name, slots=count if is_counted else None) for name, count in slots.items()
    )


def _count(match: re.Match[str]) -> int | None:
    named = _SLOTS.search(match["options"])
    given = named[1] if named else match["colon"] or match["plain"]
    return None if given is None else int(given)
