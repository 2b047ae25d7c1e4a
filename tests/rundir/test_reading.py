"""Reading files of lines, whatever their size."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import DamagedFileError
from hpctrain.rundir import reading
from hpctrain.rundir.reading import scan_lines


def is_number(value: Any) -> bool:
    return isinstance(value, dict) and "n" in value


@pytest.mark.parametrize(
    ("content", "numbers", "damage"),
    [
        (b"", [], ()),
        (b'{"n": 1}\n\n{"n": 2}\n', [1, 2], ()),
        (b'{"n": 1}\n{"n": 2}', [1, 2], ()),
        (b'{"n": 1}\n{"n', [1], ("the last line is torn",)),
        (b'{"n": 1}\nx\n{"m": 2}\n{"n": 3}\n', [1, 3], ("2 lines are damaged",)),
        (b'x\n{"n": 1}\ny', [1], ("1 line is damaged", "the last line is torn")),
        (b"\n", [], ()),
    ],
)
def test_lines_that_are_damaged_or_torn_are_left_out(
    tmp_path: Path, content: bytes, numbers: list[int], damage: tuple[str, ...]
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(content)
    found = scan_lines(path, is_number)
    assert [value["n"] for value in found.values] == numbers
    assert len(found.damage) == len(damage)
    assert all(map(str.startswith, found.damage, damage))


def test_a_file_is_not_held_in_memory_beside_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    line = json.dumps({"m": "x" * 4000}).encode() + b"\n"
    path.write_bytes(line * 4000)
    tracemalloc.start()
    try:
        assert scan_lines(path, is_number).values == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 8


def test_a_file_that_is_too_large_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"n": 1}\n' * 10)
    monkeypatch.setattr(reading, "_MOST_BYTES_OF_LINES", 80)
    with pytest.raises(DamagedFileError, match=r"is too large: it has more than 80 bytes") as no:
        scan_lines(path, is_number)
    assert "damaged" not in str(no.value)
