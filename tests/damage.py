"""Damage to files."""

from __future__ import annotations

import os
from pathlib import Path


def flip_bit(path: Path, position: int) -> None:
    """Flip a bit of one byte; a negative position counts from the end."""
    with open(path, "r+b") as file:
        file.seek(position, os.SEEK_SET if position >= 0 else os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
