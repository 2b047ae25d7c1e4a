"""`TopApp`: the page of ``hpctrain top``, drawn by Textual.

It reads in a thread: where the filesystem hangs, the keys go on working.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from hpctrain.cli.top import table_lines
from hpctrain.launch.live_watch import INTERVAL_S
from hpctrain.rundir.live_text import RANK_COLUMNS, curve_lines, page_head, rank_line
from hpctrain.rundir.live_view import LiveView

_TAKE_INTERVAL_S = 0.1
_LATE_S = 10.0
_LEAST_HEIGHT_FOR_CURVE = 26
_MOST_RUNS = 10
_STATES = {
    "running": "green",
    "starting": "green",
    "stopping": "yellow",
    "stopped": "yellow",
    "failed": "red",
    "lost": "red",
    "refused": "red",
}


class Lines(ScrollView, can_focus=False):
    """A list of lines, of which only those that are seen are made."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._line: Callable[[int], str] = lambda _: ""
        self._count = 0
        self.chosen: int | None = None
        """The line that is marked."""

    def set_lines(self, count: int, line: Callable[[int], str]) -> None:
        """Show other lines.

        Parameters
        ----------
        count
            How many there are.
        line
            Returns one of them.
        """
        self._count, self._line = count, line
        self.virtual_size = Size(self.size.width, count)
        self.refresh()

    def choose(self, number: int) -> None:
        """Mark a line, and let it be seen."""
        self.chosen = number
        self.scroll_to_region(Region(0, number, 1, 1), animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen."""
        number = y + self.scroll_offset.y
        width = self.size.width
        if number >= self._count:
            return Strip.blank(width, self.rich_style)
        style = self.rich_style + Style(reverse=number == self.chosen)
        return Strip([Segment(self._line(number), style)]).adjust_cell_length(width, style)


class _Looker:
    """Looks at the runs, in a thread that ends with the process."""

    def __init__(self, look: Callable[[], Sequence[LiveView]]) -> None:
        self._look = look
        self._is_over = threading.Event()
        self.views: Sequence[LiveView] | None = None
        self.count = 0
        self.at = time.monotonic()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="hpctrain-top", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """Look no more; a look that hangs is left alone."""
        self._is_over.set()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self.views, self.at = self._look(), time.monotonic()
                self.count += 1
                self._is_over.wait(INTERVAL_S)
        except Exception as error:
            self.error = error


class TopApp(App[None]):
    """Runs as they go.

    Parameters
    ----------
    look
        Returns the runs as they are; called in a thread, every two seconds.
    is_one
        Whether it is one run, whose ranks are shown at once.
    """

    TITLE = "hpctrain top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Lines { background: $background; scrollbar-size-vertical: 1; }
    #title { height: 1; text-style: bold; }
    #runs_header, #ranks_header { height: 1; color: $text-muted; }
    #runs { height: auto; max-height: 11; }
    #head { height: auto; max-height: 60%; margin-top: 1; }
    #curve { height: auto; max-height: 8; }
    #ranks_header { margin-top: 1; }
    #ranks { height: 1fr; min-height: 3; }
    #keys { height: 1; dock: bottom; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "quit", priority=True),
        Binding("up,shift+tab", "move(-1)", "up", priority=True),
        Binding("down,tab", "move(1)", "down", priority=True),
        Binding("pageup", "page(-1)", "page up"),
        Binding("pagedown", "page(1)", "page down"),
        Binding("enter", "show_ranks", "ranks"),
        Binding("escape,backspace", "show_runs", "runs"),
        Binding("s", "sort", "sort"),
    ]

    def __init__(self, look: Callable[[], Sequence[LiveView]], *, is_one: bool) -> None:
        super().__init__()
        self._looker = _Looker(look)
        self._is_one = is_one
        self._taken = 0
        self._slowest_first = True
        self._order: list[int] = []
        self._chosen = ""
        self.shows_ranks = is_one
        """Whether the ranks of a run are shown, and not the list of runs."""
        self.views: Sequence[LiveView] = ()
        """The runs that are shown."""
        self.error: Exception | None = None
        """Why it has ended, if it has by itself."""

    def compose(self) -> ComposeResult:
        """Make the parts of the page."""
        yield Static("hpctrain top: looking at the runs", id="title", markup=False)
        yield Static(id="runs_header", markup=False)
        yield Lines(id="runs")
        yield Static(id="head", markup=False)
        yield Static(id="curve", markup=False)
        yield Static(RANK_COLUMNS, id="ranks_header", markup=False)
        yield Lines(id="ranks")
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """Begin to look."""
        self._draw()
        self._looker.start()
        self.set_interval(_TAKE_INTERVAL_S, self._take)

    def on_unmount(self) -> None:
        """Look no more."""
        self._looker.end()

    def on_resize(self, event: events.Resize) -> None:
        """Draw the page for another size of the terminal."""
        self.call_after_refresh(self._draw)

    @property
    def chosen(self) -> LiveView | None:
        """The run that is shown; None if there is none."""
        named = (view for view in self.views if str(view.path) == self._chosen)
        return next(named, self.views[0] if self.views else None)

    def show(self, views: Sequence[LiveView]) -> None:
        """Show runs as they are now."""
        self.views = views
        if self.chosen is not None:
            self._chosen = str(self.chosen.path)
        self._draw()

    def action_move(self, step: int) -> None:
        """Choose the next run, or scroll the ranks."""
        if self.shows_ranks:
            self.query_one("#ranks", Lines).scroll_relative(y=step, animate=False)
        elif self.chosen is not None:
            number = (self.views.index(self.chosen) + step) % len(self.views)
            self._chosen = str(self.views[number].path)
            self._draw()

    def action_page(self, step: int) -> None:
        """Scroll the ranks by a page."""
        ranks = self.query_one("#ranks", Lines)
        ranks.scroll_relative(y=step * max(1, ranks.size.height - 1), animate=False)

    def action_show_ranks(self) -> None:
        """Show the ranks of the run."""
        if self.views:
            self.shows_ranks = True
            self._draw()

    def action_show_runs(self) -> None:
        """Show the list of runs."""
        if not self._is_one:
            self.shows_ranks = False
            self._draw()

    def action_sort(self) -> None:
        """List the slowest ranks first, or all by their numbers."""
        self._slowest_first = not self._slowest_first
        self.query_one("#ranks", Lines).scroll_to(y=0, animate=False)
        self._draw()

    def _take(self) -> None:
        looker = self._looker
        if looker.error is not None:
            self.error = looker.error
            self.exit()
        elif looker.count != self._taken and looker.views is not None:
            self._taken = looker.count
            self.show(looker.views)
        elif time.monotonic() - looker.at > _LATE_S:
            self._draw_title()

    def _draw(self) -> None:
        self._draw_title()
        view, width = self.chosen, self.size.width
        shows_runs = not self.shows_ranks
        for name in ("#runs_header", "#runs"):
            self.query_one(name).display = shows_runs
        for name in ("#ranks_header", "#ranks"):
            self.query_one(name).display = self.shows_ranks and view is not None
        if shows_runs and self.views:
            header, *lines = table_lines(self.views, width=width)
            self.query_one("#runs_header", Static).update(header)
            runs = self.query_one("#runs", Lines)
            runs.styles.height = min(len(lines), _MOST_RUNS)
            runs.set_lines(len(lines), lambda number: lines[number])
            if view is not None:
                runs.choose(self.views.index(view))
        self.query_one("#keys", Static).update(self._describe_keys())
        if view is None:
            return
        first, *rows = page_head(view, width=width)
        head = Text(first, style=f"bold {_STATES.get(view.shown_state, '')}".strip())
        head.append("\n" + "\n".join(rows), style="not bold default")
        self.query_one("#head", Static).update(head)
        curve = self.query_one("#curve", Static)
        curve.display = self.size.height >= _LEAST_HEIGHT_FOR_CURVE or shows_runs
        curve.update(Text("\n".join(curve_lines(view, width=width))))
        self._order = view.order(slowest_first=self._slowest_first)
        order = self._order
        self.query_one("#ranks", Lines).set_lines(
            len(order), lambda number: rank_line(view, order[number], width=width)
        )

    def _draw_title(self) -> None:
        if not self._taken and not self.views:
            title = "hpctrain top: looking at the runs"
        elif not self.views:
            title = "hpctrain top: there are no runs"
        else:
            at_work = sum(view.is_at_work for view in self.views)
            of = "1 run" if len(self.views) == 1 else f"{len(self.views)} runs"
            title = f"hpctrain top: {of}, {at_work} at work"
        if (late := time.monotonic() - self._looker.at) > _LATE_S:
            title += f"   (the files have not answered for {late:.0f} s)"
        self.query_one("#title", Static).update(title)

    def _describe_keys(self) -> str:
        order = "slowest first" if self._slowest_first else "by rank"
        if self.shows_ranks:
            back = "" if self._is_one else "   Esc runs"
            return f"q quit   ↑↓ PgUp PgDn scroll   s sort ({order}){back}"
        return "q quit   ↑↓ Tab choose   Enter ranks"
