"""``hpctrain top`` without a terminal, and what it shows of fabricated runs, compared whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.json_output import schema
from hpctrain.cli.list_runs import _rows
from hpctrain.cli.run_view import RunView
from hpctrain.cli.status import render_view
from hpctrain.cli.top import table_lines
from hpctrain.rundir.live_text import choose_curve, render_page
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.speed import Report, measure_goals, measure_speed
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from tests.cli.live_views import NOW, large_view, small_view, some_views
from tests.cli.test_json_output import check
from tests.terminal import press
from tests.waiting import wait_until

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (80, 120)
HPCTRAIN = [sys.executable, "-m", "hpctrain.cli"]
SCRIPT = """
import sys, time
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

def train(config):
    for step in range(10**6):
        hpctrain.report({"loss": 1 / (step + 1), "samples": 32 * step})
        time.sleep(0.1)

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="a+b.c", verbose=0, launcher="local", stop={"training_iteration": 10**6}
        ),
    ).fit()
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_thousand_ranks(width: int) -> None:
    lines = render_page(large_view(), width=width)
    assert max(map(len, lines)) <= width
    assert lines == (GOLDEN / f"top-{width}.txt").read_text().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_runs_and_their_pages(width: int) -> None:
    views = some_views()
    lines = table_lines(views, width=width)
    for view in views[1:]:
        lines += ["", *render_page(view, width=width)]
    assert max(map(len, lines)) <= width
    assert lines == (GOLDEN / f"top-runs-{width}.txt").read_text().splitlines()


def test_the_status_of_a_run_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    live = large_view()
    view = RunView(
        name=live.name,
        path=live.path,
        state="running",
        live=True,
        status=live.status,
        reports=1200,
        reported_at=live.reported_at,
        metrics=live.metrics,
    )
    shown = render_view(view, live)
    assert shown.splitlines() == (GOLDEN / "status-at-work.txt").read_text().splitlines()
    check({"format": 1, **view.to_json(), **live.to_json()}, schema("status"))


@pytest.mark.parametrize("width", [1, 8, 20, 40])
def test_a_terminal_may_be_tiny(width: int) -> None:
    for view in some_views():
        assert render_page(view, width=width)


def test_the_curve_is_a_loss_if_there_is_one() -> None:
    def curve(**metrics: Any) -> str | None:
        return choose_curve(small_view("r", large_view().status.state, True, metrics=metrics))

    assert curve(epoch=1, val={"loss": 1}, loss=2) == "loss"
    assert curve(epoch=1, accuracy=0.5) == "accuracy"
    assert curve(epoch=1, flag=True, text="x") == "epoch"
    assert curve(text="x") is None


class Place:
    """A directory with a run that goes on until it is killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "train.py").write_text(SCRIPT)
        self.paths = RunPaths(path / "hpctrain_runs" / "a+b.c")
        self.process = subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_until(self.paths.live.exists, "live.json", process=self.process)

    def top(self, *words: str, code: int = 0, **environ: str) -> str:
        done = subprocess.run(
            [*HPCTRAIN, "top", *words],
            cwd=self.path,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def kill(self) -> None:
        """Kill the executor, as if by the kernel."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    place = Place(tmp_path)
    yield place
    if place.process.poll() is None:
        place.kill()


@pytest.mark.mpi
def test_a_run_is_shown_at_work_killed_copied_and_damaged(place: Place, tmp_path: Path) -> None:
    wait_until(lambda: "2 training" in place.top("a+b.c"), "both ranks in training")
    shown = place.top("a+b.c", COLUMNS="80")
    assert shown.startswith("a+b.c: running\n")
    for row in ("  speed       ", "  goal        training_iteration ", "  nodes       CPU "):
        assert row in shown
    assert "  RANK  NODE" in shown
    assert max(map(len, shown.splitlines())) <= 80
    # All runs, from another directory, and the same run twice.
    storage = str(place.paths.root.parent)
    assert "a+b.c  running" in place.top("--storage", storage)
    assert place.top(str(place.paths.root), str(place.paths.root)).count("a+b.c  running") == 1

    pytest.importorskip("textual")
    page, code = press(
        b"q",
        [*HPCTRAIN, "top"],
        shown_before=b"2 training",
        cwd=tmp_path,
        environ={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        timeout_s=60,
    )
    assert code == 0, page
    assert "hpctrain top: 1 run, 1 at work" in page

    shutil.copytree(place.paths.root, tmp_path / "copy")
    assert place.top(str(tmp_path / "copy")).startswith("copy: stopped\n")

    place.kill()
    shown = place.top("a+b.c")
    assert shown.startswith("a+b.c: lost\n")
    assert "  phases      2 training" in shown, "where they were"
    assert " left" not in shown

    place.paths.live.write_text("{}")
    place.paths.status.write_text("{")
    shown = place.top("a+b.c")
    assert "  damaged     " in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
@pytest.mark.mpi
def test_a_run_of_somebody_else_is_shown_if_it_can_be_read(place: Place, tmp_path: Path) -> None:
    wait_until(lambda: "2 training" in place.top("a+b.c"), "both ranks in training")
    # Those of pytest, and one more of each of its workers.
    for directory in (tmp_path, *list(tmp_path.parents)[:3]):
        if directory != Path(tempfile.gettempdir()):
            directory.chmod(0o755)
    before = {path: path.stat().st_mtime_ns for path in place.paths.root.glob("*.pkl")}
    argv = ["setpriv", "--reuid=65534", "--clear-groups", *HPCTRAIN, "top", str(place.paths.root)]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a+b.c: running\n")
    assert "  phases      2 training" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in place.paths.root.glob("*.pkl")} == before
    # One that cannot be read hides no other.
    hidden = place.paths.root.parent / "hidden"
    hidden.mkdir()
    (hidden / "plan.json").write_text("{}")
    (hidden / "status.json").write_text("{}")
    (hidden / "status.json").chmod(0o600)
    argv[-1:] = ["--storage", str(place.paths.root.parent)]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "a+b.c   running" in done.stdout
    assert "hidden" in done.stdout


def run_top(cwd: Path, *words: str, code: int) -> str:
    done = subprocess.run(
        [*HPCTRAIN, "top", *words], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_what_is_no_run_is_refused_and_no_runs_are_none(tmp_path: Path) -> None:
    assert "is not a directory. Name runs" in run_top(tmp_path, code=2)
    assert "is not a run directory" in run_top(tmp_path, "nothing", code=2)
    (tmp_path / "hpctrain_runs").mkdir()
    assert "There are no runs in" in run_top(tmp_path, code=0)


def test_a_run_that_has_not_begun_is_shown(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "plan.json").write_text("{}")
    assert run_top(tmp_path, "new", code=0) == f"new: prepared\n  path        {tmp_path}/new\n"


def test_the_page_names_nodes_that_are_slow() -> None:
    slow = "rank 3 on n7 makes every step 2.5 times as long, since step 9 of the attempt: it is hot"
    view = large_view(8)
    view = replace(view, status=view.status.with_changes(slow=slow))
    assert f"  slow        {slow}" in render_page(view, width=200)


def test_a_metric_without_end_is_shown_in_six_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    reports = [
        Report(number=n, time=NOW - 100 + n, metrics={"loss": n * 10**399, "samples": 10**399 * n})
        for n in range(1, 40)
    ]
    view = large_view(
        8,
        metrics=reports[-1].metrics,
        history=tuple(reports),
        goals=tuple(measure_goals({"loss": 3.0}, reports)),
        speed=measure_speed(reports),
    )
    for width in WIDTHS:
        lines = render_page(view, width=width)
        assert max(map(len, lines)) <= width
        assert "loss=3.90000e+400" in "\n".join(lines)
    run = RunView(
        name=view.name,
        path=view.path,
        state="running",
        live=True,
        status=view.status,
        metrics=view.metrics,
    )
    assert max(map(len, render_view(run, view).splitlines())) < 300
    (row, *_) = _rows([run])
    assert row[-1] == "loss=3.90000e+400  samples=3.90000e+400"


@pytest.mark.parametrize("words", [["top", "waits"], ["top"], ["list"]])
def test_a_job_that_waits_is_not_said_to_if_slurm_does_not_answer(
    tmp_path: Path, words: list[str]
) -> None:
    paths = RunPaths(tmp_path / "hpctrain_runs" / "waits")
    paths.root.mkdir(parents=True)
    (paths.plan).write_text("{}")
    status = RunStatus(name="waits", state=RunState.SUBMITTED, launcher="slurm", job_id="7")
    write_status(paths, status.placed_in(paths.root))
    done = subprocess.run(
        [*HPCTRAIN, *words],
        cwd=tmp_path,
        # Without squeue.
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "Slurm did not answer, so it is unknown whether" in " ".join(said.split())
    assert "waits" in done.stdout
