"""Explain that a rank ran out of memory: how much there was, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe_kill(memory: Mapping[str, Any]) -> str:
    """Return what the kernel did to a process for want of memory, and how much there was.

    Not collective.

    Parameters
    ----------
    memory
        What `MemoryWatch.remove` returned; may be empty.
    """
    text = "killed by the kernel, out of memory"
    if "limit" in memory:
        limit = format_bytes(memory["limit"])
        if memory["sharing"] > 1:
            text += f": the {memory['sharing']} ranks of its node share a limit of {limit}"
        else:
            text += f": its limit is {limit}"
        if memory["peak"] is not None:
            text += f", of which {format_bytes(memory['peak'])} were used"
    elif memory:
        text += ": the whole node had none left, as nothing limits this rank to a part of it"
    if "resident" in memory:
        size = format_bytes(memory["resident"])
        text += f"; the rank itself held {size} when last seen, {memory['age_s']:.1f} s before"
    return text


def format_bytes(count: int) -> str:
    """Return a size for people. Not collective.

    Examples
    --------
    >>> format_bytes(300 * 2**20), format_bytes(120 * 2**30), format_bytes(4096)
    ('300 MiB', '120.0 GiB', '0 MiB')
    """
    return f"{count / 2**20:.0f} MiB" if count < 10 * 2**30 else f"{count / 2**30:.1f} GiB"


def advise_more_memory(memory: Mapping[str, Any]) -> str:
    """Return the next step. Not collective."""
    group = memory.get("group", "")
    if not group or "/job_" in group:
        return (
            "Ask Slurm for more memory, with resources_per_worker={'memory': BYTES} or "
            "SlurmConfig(mem='...'), or make batches smaller."
        )
    return f"Make batches smaller, start fewer workers, or raise the limit of {group}."
