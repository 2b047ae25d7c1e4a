"""A real tqdm in a rank: a bar in a terminal, two lines in a file."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi
pytest.importorskip("tqdm")

SCRIPT = """
import sys, time
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig
from tqdm import tqdm

def train():
    if hpctrain.get_context().get_world_rank() == 0:
        print("before", flush=True)
        for step in tqdm(range(40), desc="epoch", mininterval=0.0):
            time.sleep(0.1)
        print("after", flush=True)
    hpctrain.report({"loss": 0.5})

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="run", storage_path="."),
    ).fit()
"""
BAR = re.compile(r"epoch: +(\d+)%\|")


def screen(output: str) -> list[str]:
    """Return the lines that a terminal shows after some output."""
    rows, row = [""], 0
    for part in re.split(r"(\r|\n|\x1b\[\d*[A-Za-z]|\x1b\[\?\d+[hl])", output):
        if part == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif move := re.fullmatch(r"\x1b\[(\d*)A", part):
            row = max(0, row - int(move[1] or 1))
        elif part == "\x1b[2K":
            rows[row] = ""
        elif part != "\r" and not part.startswith("\x1b"):
            rows[row] += part
    return [line.rstrip() for line in rows]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    return {**inherited, "HPCTRAIN_LAUNCHER": "local", "TERM": "xterm"}


def test_a_terminal_shows_the_bar_as_it_grows(tmp_path: Path, environment: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    text = output.decode()
    percents = {int(percent) for percent in BAR.findall(text)}
    assert len(percents) > 5, "it grows"
    assert "run  running  0:0" in text, "below it is the status line"
    shown = screen(text)
    at = shown.index("before")
    assert BAR.match(shown[at + 1])
    assert shown[at + 1].startswith("epoch: 100%|")
    assert shown[at + 2] == "after"
    assert len([line for line in shown if BAR.match(line)]) == 1
    assert shown[-2:] == ["hpctrain: run finished", ""]


def test_a_file_gets_the_bar_once(tmp_path: Path, environment: dict[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    bars = [line for line in ended.stdout.splitlines() if BAR.search(line)]
    assert len(bars) == 1
    assert bars[0].startswith("epoch: 100%|")
