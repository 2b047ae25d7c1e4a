"""`Part`: one of the things that a state is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the things that a state is made of, under a name of its own."""

    name: str
    tree: Any
    """Of dicts, lists, tensors and values. Its tensors are the live ones; of a state that is loaded
    they are those that are read into, and values are None."""
    restore: Callable[[Any], None]
    """Take in a tree of the same form, in which the tensors have been read."""
    keep_top: bool = False
    """Whether each key of the tree has a name, also one below which there is no tensor."""
    buffers: Collection[str] = ()
    """Which keys of the tree are buffers of a module, of which each rank may have its own."""
    grown: Mapping[str, Any] = field(default_factory=dict)
    """Trees that may have another form when they are loaded, by name."""
