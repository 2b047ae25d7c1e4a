"""Describes ranks that have returned while others are in their training function. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpctrain.rundir.display import list_ranks

_MAX_FRAMES = 12
_MAX_STACKS = 2
# Below it are frames of ours.
_CALLER = "hpctrain/worker/train.py"


def describe_left_behind(
    behind: Mapping[int, str],
    *,
    returned: Sequence[int],
    where: str,
    since: str,
    stacks: Mapping[int, str],
    waits: bool,
    consequence: str,
    calls: Sequence[str] = (),
) -> str:
    """Return who has returned, who has not, and where those are.

    Not collective.

    Parameters
    ----------
    behind
        Ranks that are still in their function, and their nodes.
    returned
        Ranks that have returned.
    where, since
        How far the first of those behind is, and when it last made progress, in words.
    stacks
        What is known of where they are, as faulthandler or py-spy prints it.
    waits
        Whether the first of them waits for other ranks.
    consequence
        What is done about it.
    calls
        Which collective ranks wait in, and who has not called it.
    """
    ranks = ", ".join(f"{rank} on {node}" for rank, node in list(behind.items())[:4])
    more = f" and {len(behind) - 4} more" if len(behind) > 4 else ""
    are = f"rank {ranks} is" if len(behind) == 1 else f"ranks {ranks}{more} are"
    have = "rank {} has" if len(returned) == 1 else "ranks {} have"
    lines = [
        f"{have.format(list_ranks(returned))} returned, but {are} still in the training function "
        f"({where}, no progress since {since})",
    ]
    if waits:
        lines.append(
            "  It waits for other ranks. Every rank must make the same collective calls in the "
            "same order: move the call out of conditions such as 'if rank == 0'."
        )
    lines += [f"  {call[0].upper()}{call[1:]}" for call in calls]
    lines.append(f"  {consequence}")
    for rank, stack in list(stacks.items())[:_MAX_STACKS]:
        lines += [f"  Stack of rank {rank}, the most recent call first:", *_own_frames(stack)]
    return "\n".join(lines)


def _own_frames(stack: str) -> list[str]:
    """Return the frames of the training function and of what it has called."""
    frames = [line.rstrip() for line in stack.splitlines() if line.startswith("  ")]
    end = next((n for n, frame in enumerate(frames) if _CALLER in frame), len(frames))
    return [f"  {frame}" for frame in frames[: min(end, _MAX_FRAMES)]]
