"""Files that are read whole: JSON, a row for each item or line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from hpctrain.data import read_json

LARGE = [9223372036854775809, 9223372036854775810]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (LARGE, np.uint64),
        ([-1, *LARGE], object),
        ([2**66 + 1, None, 2**66 + 2], object),
        ([1.5, 2**53 + 1], object),
        ([[1, 2], LARGE], object),
        ([{"of": 1.5}, {"of": LARGE[0]}], object),
        ([1.5, 1e300, 2.0**60], np.float64),
    ],
)
@pytest.mark.parametrize("opened", [open, gzip.open])
def test_integers_of_any_size_are_exact_in_lines_of_json(
    tmp_path: Path, values: list[object], dtype: type, opened: object
):
    path = tmp_path / ("a.json.gz" if opened is gzip.open else "a.json")
    with opened(path, "wt") as file:  # type: ignore[operator]
        file.writelines(json.dumps({"id": value, "n": 1}) + "\n\n" for value in values)

    batch = read_json(path).to_numpy()

    assert [
        value.tolist() if hasattr(value, "tolist") else value for value in batch["id"]
    ] == values
    assert (batch["id"].dtype, batch["n"].dtype) == (dtype, np.int64)
