"""Objects count with their own size where a source tells how many rows are read at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from hpctrain.data import Dataset, read_binary_files, read_csv, read_json, read_parquet, write
from hpctrain.data.stream import bytes_of_task, choose_mixing, windows

ROWS, SIZE = 600, 100_000


def make_binary(path: Path) -> Dataset:
    for row in range(ROWS):
        with open(path / f"{row:04}.bin", "wb") as file:
            file.truncate(SIZE)
    return read_binary_files(path)


def make_csv(path: Path) -> Dataset:
    line = f"{'x' * SIZE},1\n"
    (path / "a.csv").write_text("text,n\n" + line * ROWS)
    return read_csv(path)


def make_groups(path: Path) -> Dataset:
    texts = [f"{row}{'x' * SIZE}" for row in range(ROWS)]
    table = pyarrow.table({"text": texts, "n": range(ROWS)})
    pyarrow.parquet.write_table(table, path / "a.parquet", row_group_size=10)
    return read_parquet(path)


def make_lines(path: Path) -> Dataset:
    for part in range(6):
        line = json.dumps({"text": "x" * SIZE}) + "\n"
        (path / f"{part}.json").write_text(line * (ROWS // 6))
    return read_json(path)


@pytest.mark.parametrize("make", [make_binary, make_csv, make_groups, make_lines])
def test_reads_and_shuffles_of_large_objects_are_some_mib(tmp_path: Path, make: object):
    dataset = make(tmp_path)  # type: ignore[operator]
    source, row_bytes = dataset.source, dataset.read_schema.row_bytes

    assert 0.9 * SIZE < row_bytes < 1.2 * SIZE
    largest = max(map(len, windows(source, [range(ROWS)], row_bytes)))
    assert largest * SIZE < 40 * 2**20
    assert largest * SIZE < bytes_of_task(source, None) < 40 * 2**20
    mixing = choose_mixing(source, row_bytes, buffer_rows=None, seed=0)
    assert mixing.window_rows * SIZE < 80 * 2**20


def test_large_objects_are_written_in_row_groups_of_some_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(write, "ROW_GROUP_BYTES", 2**20)
    (tmp_path / "binary").mkdir()
    dataset = make_binary(tmp_path / "binary").map(lambda row: {"text": "x" * SIZE})

    dataset.write_parquet(tmp_path / "a.parquet")

    assert pyarrow.parquet.ParquetFile(tmp_path / "a.parquet").num_row_groups == ROWS // 10
