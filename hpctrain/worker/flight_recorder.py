"""What a rank's communication library has recorded of its collectives, for the executor.

A backend whose library keeps such a record says with `record_with` how it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective, or a send or receive, that a rank has called and that has not ended."""

    op: str
    """``all_reduce``, ``broadcast``, ``recv``, ..."""
    number: int
    """Counted by the group from 1; sends and receives have a count of their own."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of its inputs."""
    dtypes: tuple[str, ...] = ()
    is_p2p: bool = False
    """Whether it is a send or a receive."""


@dataclass(frozen=True, kw_only=True)
class GroupRecord:
    """What one rank has recorded of one process group."""

    name: str
    """The same on all ranks of the group."""
    description: str
    """What its maker calls it; may be empty."""
    ranks: tuple[int, ...]
    """World ranks of its members; empty if that is not known."""
    calls: int
    """Collectives that this rank has called so far."""
    pending: Call | None
    """The oldest call that has not ended."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> GroupRecord:
        """Return what `to_json` gave."""
        pending = content["pending"]
        if pending is not None:
            shapes = tuple(tuple(map(int, shape)) for shape in pending["shapes"])
            pending = Call(**{**pending, "shapes": shapes, "dtypes": tuple(pending["dtypes"])})
        return GroupRecord(**{**content, "ranks": tuple(content["ranks"]), "pending": pending})


_Read = Callable[[bool], Sequence[GroupRecord]]
_read: _Read | None = None


def record_with(read: _Read | None) -> None:
    """Say how the record is read; None: there is none any more. Not collective.

    Parameters
    ----------
    read
        Is called in any thread, also while the main thread waits in a collective. Its argument
        says whether the newest call has failed: then it counts as pending.
    """
    global _read
    _read = read


def is_recording() -> bool:
    """Return whether there is a record. Not collective."""
    return _read is not None


def recorded_collectives(*, has_failed: bool = False) -> list[dict[str, Any]]:
    """Return the JSON objects of the groups of this rank. Not collective.

    It is empty where nothing is recorded, or the record cannot be read: whoever asks is explaining
    something worse.

    Parameters
    ----------
    has_failed
        Whether the newest call has failed.
    """
    read = _read
    if read is None:
        return []
    try:
        return [group.to_json() for group in read(has_failed)]
    except Exception:
        return []
