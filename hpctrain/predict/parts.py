"""Parts: ranges of rows that are scored, and written, as a whole; and who scores which.

The files of the parts are the ledger of what is done. They appear by rename, so whatever has its
final name is complete, and whoever resumes leaves it alone. Rows are dealt into parts once, when a
prediction begins: the same parts with the same batches come out of any number of ranks.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PARTS_PER_RANK = 32
"""So many parts make the ranks end together, although some are faster than others."""
FEWEST_ROWS = 65536
"""Smaller parts would cost more in files than they gain in balance, if there are more rows."""
MOST_ROWS = 2**20
"""What one rank has to score again, at most, after a failure."""
MOST_PARTS = 10_000
"""So many files a directory may have on any filesystem."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Rows, dealt into parts."""

    num_rows: int
    rows_per_part: int

    @staticmethod
    def make(num_rows: int, *, batch_size: int, world_size: int) -> Partition:
        """Return a partition for so many ranks.

        Not collective. Parts are whole batches, so batches are the same in every partition.

        Examples
        --------
        >>> Partition.make(10_000_000, batch_size=4096, world_size=2)
        Partition(num_rows=10000000, rows_per_part=159744)
        """
        rows = -(-num_rows // (PARTS_PER_RANK * world_size))
        rows = min(max(rows, FEWEST_ROWS), MOST_ROWS)
        rows = max(rows, -(-num_rows // MOST_PARTS))
        rows = min(rows, -(-num_rows // world_size))
        return Partition(
            num_rows=num_rows, rows_per_part=max(1, -(-rows // batch_size)) * batch_size
        )

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return -(-self.num_rows // self.rows_per_part)

    def rows(self, part: int) -> range:
        """Return the rows of a part. Not collective."""
        start = part * self.rows_per_part
        return range(start, min(start + self.rows_per_part, self.num_rows))


def part_name(part: int, suffix: str) -> str:
    """Return the name of a part's file. Not collective."""
    return f"part-{part:06d}{suffix}"


def empty_part_name(part: int) -> str:
    """Return the name of the file that says that a part has no rows. Not collective.

    Whoever reads a directory of Parquet files leaves such names out.
    """
    return f"_part-{part:06d}.empty"


def parts_in(directory: Path, suffix: str) -> set[int]:
    """Return the parts that are done. Not collective."""
    pattern = re.compile(rf"part-(\d+){re.escape(suffix)}|_part-(\d+)\.empty")
    found = filter(None, map(pattern.fullmatch, os.listdir(directory)))
    return {int(match[1] or match[2]) for match in found}


class Claims:
    """Which rank scores which part: whoever makes the file of a part first.

    A rank takes the parts of its own share in order, and then what others
    have not begun yet. Nobody waits for anybody, and nothing has to pass through one rank.

    Parameters
    ----------
    directory
        Where the files are; of one attempt, so that a dead rank's claims are nobody's.
    todo
        Parts to score, the same on every rank.
    """

    def __init__(self, directory: Path, todo: Sequence[int], *, rank: int, world_size: int) -> None:
        self._directory = directory
        self._todo = todo
        begin, end = (len(todo) * r // world_size for r in (rank, rank + 1))
        self._own = todo[begin:end]
        self._is_alone = world_size == 1
        self._random = random.Random(rank)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the parts that this rank has claimed, each when it is asked for."""
        for part in self._own:
            if self._is_alone or self._claim(part):
                yield part
        taken: set[str] = set()
        while not self._is_alone:
            # NFS may show a directory as it was some seconds ago: what was seen once stays taken.
            taken.update(os.listdir(self._directory))
            left = [part for part in self._todo if str(part) not in taken]
            if not left:
                return
            # Each at another place, or all that have nothing left would want the same.
            part = self._random.choice(left)
            taken.add(str(part))
            if self._claim(part):
                yield part

    def _claim(self, part: int) -> bool:
        try:
            descriptor = os.open(
                self._directory / str(part), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644
            )
        except FileExistsError:
            return False
        os.close(descriptor)
        return True
