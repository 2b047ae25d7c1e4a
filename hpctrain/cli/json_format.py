"""The version of what ``--json`` prints."""

from __future__ import annotations

FORMAT = 1
"""Version of these schemas; every object that is printed has it as ``format``."""
FORMAT_FIELD = (
    "format",
    "integer",
    f"{FORMAT}; raised when a field is removed, or changes its meaning",
)
"""Of every object that is printed."""
