"""`GroupRecord`: what one rank has recorded of the collectives of one process group."""

from __future__ import annotations

from collections.abc import Mapping
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
