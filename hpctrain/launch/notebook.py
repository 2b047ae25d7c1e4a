"""Draw a run in a notebook, again and again."""

from __future__ import annotations

import time
from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.launch.live_watch import LiveWatch
from hpctrain.own_time import Deadline
from hpctrain.rundir.live_html import render_live
from hpctrain.rundir.live_text import render_page

_LEAST_INTERVAL_S = 1.0
_WIDTH = 100


class _Page:
    """A look at a run, in the forms that a frontend of IPython chooses from."""

    def __init__(self, watch: LiveWatch) -> None:
        self.view = watch.look()

    def _repr_html_(self) -> str:
        return render_live(self.view)

    def __repr__(self) -> str:
        return "\n".join(render_page(self.view, width=_WIDTH))


def show(watch: LiveWatch, *, interval_s: float, timeout_s: float) -> None:
    """Draw a run until it is over. Not collective.

    Parameters
    ----------
    watch
        The run.
    interval_s, timeout_s
        As of `RunHandle.show`.

    Raises
    ------
    ConfigError
        If this is no notebook, or the interval is too short.
    """
    if not interval_s >= _LEAST_INTERVAL_S:
        raise ConfigError(
            f"show(interval_s={interval_s!r}): at least {_LEAST_INTERVAL_S:g}, as the executor "
            f"writes how the run goes every 2 s."
        )
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError as error:
        raise ConfigError(f"show() needs IPython. {_INSTEAD}") from error
    if get_ipython() is None:
        raise ConfigError(f"show() draws in a notebook, and this is none. {_INSTEAD}")
    deadline = Deadline(timeout_s, longest_gap_s=2 * interval_s)
    page = _Page(watch)
    drawn: Any = display(page, display_id=True)  # type: ignore[no-untyped-call]
    while not page.view.is_over and not deadline.is_over:
        time.sleep(min(interval_s, deadline.left_s))
        page = _Page(watch)
        drawn.update(page)


_INSTEAD = "In a terminal: hpctrain top RUN"
