"""Host lists in Slurm's compressed form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

_NUMBERED = re.compile(r"(.*?)([0-9]+)", re.ASCII | re.DOTALL)


def compress_hosts(hosts: Iterable[str]) -> str:
    """Return names of hosts in Slurm's short form, which ``scontrol show hostnames`` expands.

    Not collective. Duplicates are dropped. Names that differ only in their final number are
    grouped, in numeric order, at the place of the first of them.

    Examples
    --------
    >>> compress_hosts(["gpu008", "gpu007", "gpu010", "login", "gpu009"])
    'gpu[007-010],login'
    >>> compress_hosts(["n9", "n001", "n10", "n9"])
    'n[9-10],n001'
    """
    split = {host: _split(host) for host in hosts}
    padded = {(prefix, len(digits)) for prefix, digits in split.values() if digits[:1] == "0"}
    groups: dict[tuple[str, int | None], list[int]] = {}
    for prefix, digits in split.values():
        width = len(digits) if (prefix, len(digits)) in padded else 1
        numbers = groups.setdefault((prefix, width if digits else None), [])
        numbers.extend(map(int, filter(None, [digits])))
    return ",".join(
        prefix if width is None else _join(prefix, width, sorted(numbers))
        for (prefix, width), numbers in groups.items()
    )


def list_in_order(hosts: Iterable[str]) -> str:
    """Return names of hosts in Slurm's short form, in their order and as often as they are given.

    Not collective. Only the common beginning of neighbours is left out.

    Examples
    --------
    >>> list_in_order(["gpu010", "gpu010", "gpu007", "login", "login"])
    'gpu[010,010,007],login,login'
    """
    parts: list[str] = []
    split = map(_split, hosts)
    for (prefix, is_numbered), group in groupby(split, key=lambda host: (host[0], host[1] != "")):
        numbers = [digits for _, digits in group]
        if is_numbered and len(numbers) > 1:
            parts.append(f"{prefix}[{','.join(numbers)}]")
        else:
            parts += [f"{prefix}{number}" for number in numbers]
    return ",".join(parts)


def _split(host: str) -> tuple[str, str]:
    match = _NUMBERED.fullmatch(host)
    return (host, "") if match is None else (match[1], match[2])


def _join(prefix: str, width: int, numbers: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    parts = ["-".join(f"{end:0{width}}" for end in dict.fromkeys(pair)) for pair in ranges]
    inside = ",".join(parts)
    return f"{prefix}{inside}" if inside.isdigit() else f"{prefix}[{inside}]"
