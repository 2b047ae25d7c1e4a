from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from hpctrain.data import Dataset, Schema, from_numpy
from hpctrain.data.source import Blocks, Concatenated, RowRanges, SideBySide, Source
from hpctrain.errors import ConfigError


@dataclass(frozen=True)
class Miscounting:
    """Has another number of rows than it says."""

    there: int
    num_rows: int = 10
    unit_rows: int = 1

    @property
    def schema(self) -> Schema:
        return Schema.of({"n": np.arange(1)})

    def blocks(self) -> Blocks:
        return Blocks([(self.num_rows, 3)])

    def read(self, rows: range, columns: Sequence[str] | None) -> dict[str, np.ndarray]:
        more = max(self.there - self.num_rows, 0)
        return {"n": np.arange(self.there)[rows.start : rows.stop + more]}


@pytest.mark.parametrize("there", [0, 7, 9, 11])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_source_that_gives_another_number_of_rows_is_refused(there: int, shuffle: bool):
    wrong, other = Miscounting(there), from_numpy({"m": np.arange(10)}).source
    sources: list[Source] = [
        wrong,
        Concatenated(parts=(wrong, wrong)),
        RowRanges(source=wrong, ranges=(range(4, 10), range(4))),
        SideBySide(parts=(other, wrong)),
    ]
    for source in sources:
        dataset = Dataset(source)
        with pytest.raises(
            ConfigError, match=r"Miscounting returned .* rows of column 'n' for the"
        ):
            dataset.to_numpy()
        with pytest.raises(ConfigError, match="make the dataset again"):
            list(dataset.shard(rank=0, world_size=1).iter_batches(batch_size=4, shuffle=shuffle))
