"""What a rank's communication library has recorded of its collectives, for the executor.

A backend whose library keeps such a record says with `record_with` how it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.worker.group_record import GroupRecord


_Read = Callable[[bool], "Sequence[GroupRecord]"]
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

    It is empty where nothing is recorded, or the record cannot be read: callers are explaining a
    worse error.

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
