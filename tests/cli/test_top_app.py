"""The page of ``hpctrain top`` in a terminal, driven by Textual's own pilot."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual")

from textual.pilot import Pilot
from textual.widgets import Static

from hpctrain.cli.top_app import Lines, TopApp
from hpctrain.rundir.live_view import LiveView
from hpctrain.rundir.states import RunState
from tests.cli.live_views import large_view, small_view, some_views
from tests.cli.test_top import HPCTRAIN
from tests.processes import run_python

PATIENCE_S = 30.0


def drive(
    look: Callable[[], Sequence[LiveView]],
    act: Callable[[TopApp, Pilot[None]], Any],
    *,
    is_one: bool = False,
    size: tuple[int, int] = (100, 40),
) -> TopApp:
    """Run the app until `act` has ended."""
    app = TopApp(look, is_one=is_one)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await act(app, pilot)

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    return app


async def until(pilot: Pilot[None], condition: Callable[[], bool], what: str) -> None:
    """Wait until the app has come so far; `drive` bounds it."""
    for _ in range(1000):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError(what)


def screen(app: TopApp) -> list[str]:
    """Return what the terminal shows."""
    return [
        "".join(segment.text for segment in strip)
        for strip in app.screen._compositor.render_strips()
    ]


def marked(app: TopApp) -> str:
    """Return the line that is marked in the list of runs."""
    lines = app.query_one("#runs", Lines)
    assert lines.chosen is not None
    return lines._line(lines.chosen)


def test_the_runs_are_listed_and_chosen_by_keys() -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(app.views) == 7, "the runs")
        await pilot.pause()
        shown = screen(app)
        assert shown[0].startswith("hpctrain top: 7 runs, 3 at work")
        assert shown[1].startswith("RUN")
        assert any(line.startswith("  speed       1.02 s/report") for line in shown)
        assert marked(app).startswith("llama-70b")
        for key, name in (("down", "stops"), ("tab", "waits"), ("up", "stops")):
            await pilot.press(key)
            assert marked(app).startswith(name)
        await pilot.press("up", "up", "up")
        assert marked(app).startswith("bad"), "the first follows the last"
        await pilot.pause()
        assert any(line.startswith("bad: failed") for line in screen(app))
        await pilot.press("q")

    assert drive(some_views, act).error is None


def test_a_run_stays_chosen_when_others_come_before_it() -> None:
    views = [small_view("old", RunState.RUNNING, True)]

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(app.views) == 1, "the run")
        app.show([small_view("new", RunState.RUNNING, True), *views])
        assert marked(app).startswith("old")
        app.show([])
        app.show([small_view("new", RunState.RUNNING, True)])
        assert marked(app).startswith("new")

    drive(lambda: views, act)


def test_the_ranks_of_a_run_are_sorted_and_scrolled() -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: bool(app.views), "the run")
        assert not app.shows_ranks
        await pilot.press("enter")
        await pilot.pause()
        ranks = app.query_one("#ranks", Lines)

        def first() -> str:
            line: str = ranks._line(int(ranks.scroll_offset.y))
            return line.split()[0]

        assert first() == "997", "the slowest"
        assert any(line.split()[:3] == ["997", "gpu124", "checkpoint"] for line in screen(app))
        await pilot.press("s")
        await pilot.pause()
        assert first() == "0"
        await pilot.press("down", "down", "pagedown")
        await pilot.pause()
        assert int(first()) > 2
        await pilot.press("s", "escape")
        await pilot.pause()
        assert not app.shows_ranks
        assert screen(app)[1].startswith("RUN")

    drive(lambda: [large_view()], act)


def test_one_run_is_shown_with_its_ranks_at_once() -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: bool(app.views), "the run")
        await pilot.press("escape")
        await pilot.pause()
        assert app.shows_ranks
        assert "q quit" in screen(app)[-1]

    drive(lambda: [large_view()], act, is_one=True)


@pytest.mark.parametrize("size", [(20, 5), (80, 24), (300, 100)])
def test_a_terminal_may_have_any_size(size: tuple[int, int]) -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: bool(app.views), "the runs")
        for key in ("down", "enter", "s", "down", "pagedown", "escape"):
            await pilot.press(key)
        await pilot.resize_terminal(40, 12)
        await pilot.pause()

    drive(some_views, act, size=size)


def test_names_are_no_markup_and_move_no_cursor() -> None:
    name = "[bold red]x[/]\x1b[2J"

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: bool(app.views), "the run")
        await pilot.pause()
        shown = "\n".join(screen(app))
        assert "[bold red]x[/] [2J" in shown
        assert "\x1b" not in shown

    drive(lambda: [small_view(name, RunState.RUNNING, True, error="[/]")], act)


def test_keys_work_while_the_filesystem_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctrain.cli.top_app._LATE_S", 0.0)
    answers = threading.Event()

    def hang() -> list[LiveView]:
        answers.wait(PATIENCE_S)
        return []

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        title = app.query_one("#title", Static)
        await until(pilot, lambda: "have not answered" in str(title.render()), "that it hangs")
        await pilot.press("down", "enter", "s", "q")

    try:
        drive(hang, act)
    finally:
        answers.set()


def test_an_error_of_its_own_ends_it() -> None:
    def fail() -> list[LiveView]:
        raise ValueError("of our own")

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.error is not None, "the error")

    assert str(drive(fail, act).error) == "of our own"


def test_without_textual_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "hpctrain_runs" / "new").mkdir(parents=True)
    (tmp_path / "hpctrain_runs" / "new" / "plan.json").write_text("{}")
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError('no textual', name='textual')")
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "sys.stdout.isatty = sys.stdin.isatty = lambda: True\n"
        "from hpctrain.cli.main import app\n"
        "sys.argv[1:] = ['top']\n"
        "app()\n"
    )
    done = run_python("-c", code, cwd=tmp_path, code=2, timeout_s=60)
    assert "pip install 'hpctrain[top]'" in done.stderr
    # Without a terminal it is not needed.
    done = subprocess.run(
        [*HPCTRAIN, "top", "new"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
