"""Parts: ranges of rows that are scored and written as a whole, and their assignment to ranks.

The files of the parts record what is done. They appear by rename, so a file with its final name is
complete, and a resumed run keeps it. Rows are divided into parts once, when a prediction begins:
any number of ranks scores the same parts with the same batches.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PARTS_PER_RANK = 32
"""With so many parts ranks end at about the same time, although some are faster than others."""
FEWEST_ROWS = 65536
"""Fewest rows of a part, if there are more: smaller parts cost more than their balance gains."""
MOST_ROWS = 2**20
"""Most rows of a part, which a rank scores again after a failure."""
MOST_PARTS = 10_000
"""Most parts: any filesystem supports so many files in a directory."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Division of rows into parts."""

    num_rows: int
    rows_per_part: int

    @staticmethod
    def make(num_rows: int, *, batch_size: int, world_size: int) -> Partition:
        """Return a partition for this number of ranks.

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
    """Return the name of the file that marks a part without rows. Not collective.

    Readers of a directory of Parquet files skip such names.
    """
    return f"_part-{part:06d}.empty"


def parts_in(directory: Path, suffix: str) -> set[int]:
    """Return the parts that are done. Not collective."""
    pattern = re.compile(rf"part-(\d+){re.escape(suffix)}|_part-(\d+)\.empty")
    found = filter(None, map(pattern.fullmatch, os.listdir(directory)))
    return {int(match[1] or match[2]) for match in found}


class Claims:
    """Assignment of parts to ranks: the first rank that creates the claim file of a part scores it.

    A rank claims the parts of its own share in order, and then parts that other ranks have not
    begun. No rank waits for another, and no rank is a bottleneck.

    Parameters
    ----------
    directory
        Directory of the claim files of one attempt, so that the claims of dead ranks end with it.
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
        """Claim parts and iterate over them; each is claimed when it is requested."""
        for part in self._own:
            if self._is_alone or self._claim(part):
                yield part
        taken: set[str] = set()
        while not self._is_alone:
            # NFS may list a directory as it was some seconds ago, so a part once seen stays taken.
            taken.update(os.listdir(self._directory))
            left = [part for part in self._todo if str(part) not in taken]
            if not left:
                return
            # Choose at random, or all idle ranks would try the same part.
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
