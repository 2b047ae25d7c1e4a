"""The story of "Three acts", typed on a cluster with accounting; its page shows what was printed.

``pytest tests/story --rewrite-golden`` writes the text and the picture of the page anew: look at
the difference.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.testing.slurm import ClusterSpec, VirtualCluster
from tests.clusters import own_cluster
from tests.run_report.chromium import Chromium
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

CHECKOUT = Path(__file__).parents[2]
SHOWN = CHECKOUT / "docs" / "three-acts"
HOME = "/home/me"
REPLACE = """
for (const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); walk.nextNode();)
  walk.currentNode.data = walk.currentNode.data.replaceAll(%(from)s, %(to)s)
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualCluster]:
    spec = ClusterSpec(num_nodes=3, cpus_per_node=4, gpus_per_node=0, accounting=True)
    accounting = ("add account physics cluster=hpctrain", "add user root account=physics")
    with own_cluster(spec, *accounting) as cluster:
        for name, value in cluster.environ.items():
            monkeypatch.setenv(name, value)
        yield cluster


class Author:
    """Who types the commands, and what was printed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.transcript: list[str] = []
        shutil.copy(CHECKOUT / "examples" / "three_acts.py", home)

    def __call__(self, command: str, *, code: int | None = 0) -> str:
        program, *words = shlex.split(command)
        argv = [program, *words]
        if program == "hpctrain":
            argv = [sys.executable, "-m", "hpctrain.cli", *words]
        done = subprocess.run(
            argv,
            cwd=self.home,
            # Paths of temporary directories are long, and are shown in place of shorter ones.
            env={**os.environ, "COLUMNS": "140"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        assert code in (None, done.returncode), f"{command}: {done.returncode}\n{done.stdout}"
        ending = f"[exit code {code}]\n" if code else ""
        shown = "\n".join(filter(None, [f"$ {command}", done.stdout.rstrip()]))
        self.transcript.append(f"{shown}\n{ending}")
        return done.stdout

    def edit(self, old: str, new: str) -> None:
        script = self.home / "three_acts.py"
        text = script.read_text()
        assert text.count(old) == 1
        script.write_text(text.replace(old, new))

    def act(self) -> str:
        """Return what was printed since the last act, without what differs from day to day."""
        text = "\n".join(self.transcript)
        self.transcript.clear()
        for pattern, instead in (
            (re.escape(str(self.home)), HOME),
            (rf"{re.escape(sys.prefix)}/lib/python3\.\d+", f"{HOME}/venv/lib/python3"),
            (re.escape(sys.executable), "python"),
            (re.escape(str(CHECKOUT)), f"{HOME}/hpctrain"),
            (r"0x[0-9a-f]{6,}", "0x7f873d665b80"),
            (r"\b\d\d:\d\d:\d\d\b", "09:30:00"),
            (r"\b\d{4}-\d\d-\d\d\b", "2026-03-02"),
        ):
            text = re.sub(pattern, instead, text)
        return text


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory whose path is as short as that of a person."""
    with tempfile.TemporaryDirectory(prefix="me-", dir="/tmp") as home:
        yield Path(home)


def test_three_acts(cluster: VirtualCluster, home: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("torch")
    author, acts = Author(home), []

    # Before the queue: the account does not exist, and sbatch would say no more than that.
    found = author("hpctrain doctor three_acts.py", code=3)
    assert re.search(r"error\s+account\s.*physiks", found)
    assert "physics" in found
    acts.append(author.act())

    # While it runs: two of three ranks leave out a collective, and wait in the next one.
    author.edit("physiks", "physics")
    author("hpctrain submit three_acts.py")
    said = author("hpctrain wait acts", code=4)
    assert re.search(
        r"  Rank 0 waits in all_reduce #\d+ \(float \[1\], process group default_pg\); ranks 1-2 ",
        said,
    )
    assert "never called it: three_acts.py:44, in train\n" in said
    acts.append(author.act())

    # The page says that a day later it is still there to read; it does not show it again.
    later = author("hpctrain why acts")
    assert re.match(r"acts: failed(, job \d+|\n)", later)
    assert verdict_of(said) == verdict_of(later)
    author.transcript.clear()

    # After it ended: an administrator takes the job's place, it goes on by itself, and its page
    # tells where the time went.
    author.edit(
        "if epoch < 2 or rank == 0:  # for the printed line of rank 0, somebody thought", "if True:"
    )
    job = re.findall(r"job (\d+)", author("hpctrain submit three_acts.py"))[-1]
    run = home / "hpctrain_runs" / "acts"
    wait_until(
        lambda: any(run.glob("checkpoints/0000[1-9]*")),
        lambda: author("hpctrain history acts") + author("hpctrain why acts", code=None),
        timeout_s=120,
    )
    author(f"scontrol requeue {job}")
    author("hpctrain wait acts")
    author("hpctrain history acts")
    page = home / "acts.html"
    summary = author("hpctrain report acts --output acts.html")
    assert re.search(r"acts: finished\n +attempts +[34]\b", summary)
    acts.append(author.act())

    # What another program reads, of a checkpoint that ranks of a job have saved.
    author("hpctrain checkpoints export acts model")
    safetensors = pytest.importorskip("safetensors.torch")
    weights = safetensors.load_file(home / "model" / "model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in weights.items()} == {
        "weight": [1, 8],
        "bias": [1],
    }
    author.transcript.clear()

    if request.config.getoption("--rewrite-golden"):
        SHOWN.mkdir(exist_ok=True)
        for number, text in enumerate(acts, 1):
            (SHOWN / f"act-{number}.txt").write_text(text)
    for number, text in enumerate(acts, 1):
        shown = (SHOWN / f"act-{number}.txt").read_text()
        assert words(text) == words(shown), "\n".join(
            difflib.ndiff(shown.split("\n"), text.split("\n"))
        )
    browser = Chromium(home / "profile")
    try:
        # Curves are drawn when they are on the screen.
        browser.show(page, width=900, height=3700, scheme="light")
        assert browser.complaints == []
        if request.config.getoption("--rewrite-golden"):
            browser.evaluate(REPLACE % {"from": json.dumps(str(home)), "to": json.dumps(HOME)})
            browser.evaluate(
                REPLACE % {"from": json.dumps(sys.prefix), "to": json.dumps(f"{HOME}/venv")}
            )
            browser.photograph(SHOWN / "report.png")
    finally:
        browser.close()


def verdict_of(text: str) -> str:
    """Return the sentence that says where ranks wait, and which have never come, in one line."""
    (found,) = re.findall(
        r"Rank 0 waits in all_reduce #\d+ .*? never called it: three_acts\.py:44, in train\b",
        " ".join(text.split()),
    )
    return str(found)


def words(text: str) -> list[str]:
    """Return the words of a transcript that are the same every day."""
    # What took most of the time comes first.
    text = re.sub(r"(?m)^  time .*\n(?: {14}.*\n)*", "", text)
    # In a training of some seconds, a wait for other ranks is seen or not.
    text = re.sub(r"(?m)^  training .*\n(?: {14}.*\n)*", "  training\n", text)
    text = re.sub(r"\d+(\.\d+)?(e-?\d+)?|\bnode\S+", "0", text)
    return re.findall(r"[A-Za-z_]{3,}", text)
