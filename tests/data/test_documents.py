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


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], "float64"),
        ([2**60 + 1, 2], "object"),
        (["2024-01-05", "2024-01-06"], "datetime64[s]"),
        ([True, False], "object"),
        (["a", "b"], "object"),
    ],
)
@pytest.mark.parametrize("without", [{"x": None}, {}])
def test_a_file_without_a_value_of_a_column_does_not_decide_its_type(
    tmp_path: Path, values: list[object], dtype: str, without: dict[str, None]
):
    files = {
        "a": [{**without, "n": 1}],
        "b": [{"x": value, "n": 2} for value in values],
        "c": [{**without, "n": 3}],
    }
    for name, rows in files.items():
        (tmp_path / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = read_json(tmp_path)

    column = dataset.to_numpy()["x"]

    assert dataset.schema()["x"].dtype == column.dtype == dtype
    alone = read_json(tmp_path / "b.json").to_numpy()["x"]
    assert column[1:3].astype(alone.dtype).tolist() == alone.tolist()
    assert all(value is None or value != value for value in column[[0, 3]])


def test_a_column_without_any_value_is_of_objects(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text('{"x": null, "n": 1}\n')
    assert str(read_json(tmp_path).schema()) == "x: object, n: int64"
    assert read_json(tmp_path).to_numpy()["x"].tolist() == [None, None]
