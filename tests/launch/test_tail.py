from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.launch.tail import Tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def append(log: Path, content: bytes) -> None:
    with open(log, "ab") as file:
        file.write(content)


def test_a_bar_is_unfinished_until_its_line_is_complete(log: Path) -> None:
    tail = Tail(log)
    append(log, b"begins\n\r 0%|    |\r 50%|##  |")
    assert tail.read() == ["begins"]
    assert tail.unfinished == [" 50%|##  |"]
    append(log, b"\r100%|####|\nends\n")
    assert tail.read() == ["100%|####|", "ends"]
    assert tail.unfinished == []


def test_bars_below_each_other_are_two_lines_whatever_they_wrote(log: Path) -> None:
    # tqdm with position=1 writes a newline, the bar, and the way back up.
    tail = Tail(log)
    shown = []
    for epoch in range(20):
        for step in range(50):
            append(log, b"\router %d" % epoch + b"\n\rinner %d\x1b[A" % step)
            shown += tail.read()
            assert tail.unfinished == [f"outer {epoch}", f"inner {step}"]
    append(log, b"\n\n")
    shown += tail.read(final=True)
    assert shown[:2] == ["outer 19", "inner 49"]
    assert len([line for line in shown if line]) == 2


def test_a_sequence_that_is_written_in_halves_is_one(log: Path) -> None:
    tail = Tail(log)
    append(log, b"a\nb\x1b")
    assert tail.read() == ["a"]
    append(log, b"[")
    tail.read()
    append(log, b"Ac")
    tail.read()
    assert tail.read(final=True) == ["c"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_what_is_shown_does_not_depend_on_when_it_is_read(log: Path, size: int) -> None:
    content = b"one\ntwo \x1b[31mred\x1b[0m\r\nbar 1\rbar 2\rbar 3\n\n\rlast"
    tail, shown = Tail(log), []
    for start in range(0, len(content), size):
        append(log, content[start : start + size])
        shown += tail.read()
    shown += tail.read(final=True)
    assert shown == ["one", "two \x1b[31mred\x1b[0m", "bar 3", "", "last"]
