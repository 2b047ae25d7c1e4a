"""`Tail`: what was appended to a file, as a terminal would show it."""

from __future__ import annotations

import re
from pathlib import Path

from hpctrain.regular_file import open_regular

# At a look: what is more comes with the next one.
_MOST_BYTES = 2**30
_UP = b"\x1b[A"
_MOVES = re.compile(rb"(\r|\n|\x1b\[A)")


class Tail:
    """What was appended to a file since the last look.

    Progress bars overwrite their lines, by carriage returns, and those above by moving the cursor
    up. A line is only complete once the cursor has left it for good.

    Parameters
    ----------
    path
        The file, which may not exist yet.
    last_bytes
        Of a file that is longer at the first look, only so much of its end is read.
    """

    def __init__(self, path: Path, *, last_bytes: int | None = None) -> None:
        self.path = path
        self._last_bytes = last_bytes
        self._offset = 0
        self._screen = _Screen()
        self._begins_inside_line = False

    def read(self, *, final: bool = False) -> list[str]:
        """Return the complete lines that are new; `final` returns an incomplete one too."""
        try:
            with open_regular(self.path) as file:
                if self._last_bytes is not None:
                    self._skip_to_last_bytes(file.seek(0, 2))
                file.seek(self._offset)
                content = file.read(_MOST_BYTES) or b""
        except FileNotFoundError:
            return []
        self._offset += len(content)
        if self._begins_inside_line:
            _, newline, content = content.partition(b"\n")
            self._begins_inside_line = not newline
        self._screen.write(content)
        return [_decode(line) for line in self._screen.take(final=final)]

    @property
    def unfinished(self) -> list[str]:
        """What is shown of lines that are not complete, such as progress bars."""
        return [_decode(line) for line in self._screen.rows if line]

    def skip_to_end(self) -> None:
        """Begin with what is appended from now on."""
        self._offset = self.path.stat().st_size if self.path.exists() else 0

    def _skip_to_last_bytes(self, size: int) -> None:
        assert self._last_bytes is not None
        self._offset = max(0, size - self._last_bytes)
        self._last_bytes = None
        if self._offset:
            self._begins_inside_line = True


class _Screen:
    """The rows that a cursor may still change."""

    def __init__(self) -> None:
        self.rows = [b""]
        self._row = 0
        self._overwrites = False
        self._highest_jump = 0
        self._rest = b""

    def write(self, content: bytes) -> None:
        """Print what a process has printed."""
        content, self._rest = self._rest + content, b""
        for begun in (_UP[:2], _UP[:1]):
            # Half of a sequence: the rest of it is yet to be read.
            if content.endswith(begun):
                content, self._rest = content[: -len(begun)], begun
                break
        if b"\r" not in content and _UP not in content and self._row == len(self.rows) - 1:
            first, *others = content.split(b"\n")
            self._put(first)
            self.rows += others
            self._row = len(self.rows) - 1
            self._overwrites = self._overwrites and not others
            return
        jump = 0
        for part in _MOVES.split(content):
            if part == b"\r":
                self._overwrites = True
            elif part == b"\n":
                self._row, self._overwrites, jump = self._row + 1, False, 0
                if self._row == len(self.rows):
                    self.rows.append(b"")
            elif part == _UP:
                self._row, self._overwrites, jump = max(0, self._row - 1), True, jump + 1
                self._highest_jump = max(self._highest_jump, jump)
            else:
                self._put(part)

    def take(self, *, final: bool) -> list[bytes]:
        """Return the rows that are complete, and forget them."""
        if final:
            taken, self.rows = [row for row in self.rows if row or row is not self.rows[-1]], [b""]
            self._row, self._highest_jump, self._overwrites = 0, 0, False
            return taken
        complete = max(0, self._row - self._highest_jump)
        taken, self.rows = self.rows[:complete], self.rows[complete:]
        self._row -= complete
        return taken

    def _put(self, text: bytes) -> None:
        if not text:
            return
        self.rows[self._row] = text if self._overwrites else self.rows[self._row] + text
        self._overwrites = False


def _decode(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")
