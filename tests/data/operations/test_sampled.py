"""A random share of rows, read some MiB at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from hpctrain.data import Schema
from hpctrain.data.operations.sampled import SampledRows
from hpctrain.data.source import Blocks
from hpctrain.data.stream import READ_BYTES


@dataclass(frozen=True)
class Counted:
    """Numbers from 0; remembers what was read."""

    num_rows: int
    block_rows: int
    reads: list[range] = field(default_factory=list)
    unit_rows: int = 1

    @property
    def schema(self) -> Schema:
        return Schema.of({"n": np.arange(1)})

    def blocks(self) -> Blocks:
        return Blocks([(self.num_rows, self.block_rows)])

    def read(self, rows: range, columns: Sequence[str] | None) -> dict[str, np.ndarray]:
        self.reads.append(rows)
        return {"n": np.arange(rows.start, rows.stop)}


@pytest.mark.parametrize("fraction", [1e-5, 0.01, 1.0])
def test_a_small_share_of_many_rows_is_read_some_mib_at_a_time(fraction: float):
    source = Counted(num_rows=6_000_000, block_rows=1_000_000)
    sampled = SampledRows(source=source, fraction=fraction, seed=1)
    rows = range(1, sampled.num_rows)

    found = sampled.read(rows, None)["n"]

    assert np.array_equal(found, sampled._chosen[1:])
    assert max(map(len, source.reads)) * 8 <= READ_BYTES
    # Blocks without a drawn row are not read.
    assert len(source.reads) <= len(rows)
