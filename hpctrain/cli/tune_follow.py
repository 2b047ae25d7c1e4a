"""``hpctrain tune status --follow``: the trials of a sweep, again whenever they have changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpctrain.tune.ledger import SweepPaths

_ERASE = "\x1b[H\x1b[2J\x1b[3J"
_INTERVAL_S = 2.0
# Slurm's controller is asked each time.
_INTERVAL_WITH_JOBS_S = 15.0


def follow(paths: SweepPaths, render: Callable[[], tuple[str, bool]], *, has_jobs: bool) -> None:
    """Print what changes, until the sweep is not at work any more. Not collective.

    Parameters
    ----------
    paths
        Of the sweep.
    render
        Returns the text, and whether the sweep is at work.
    has_jobs
        Whether trials are jobs.

    Raises
    ------
    RunStoppedError
        If its tuner has died on another host.
    """
    import shutil
    import sys
    import time

    from hpctrain.tune.tuner_life import TunerWatch

    interval_s = _INTERVAL_WITH_JOBS_S if has_jobs else _INTERVAL_S
    watch = TunerWatch(paths, longest_gap_s=2 * interval_s)
    is_terminal, before = sys.stdout.isatty(), ""
    while True:
        text, is_at_work = render()
        if text != before:
            if is_terminal:
                room = shutil.get_terminal_size().lines - 1
                # What has just been done is of less interest once all is over.
                shown = crop(text, room) if is_at_work else text
                print(_ERASE + shown, flush=True)
            else:
                print(text + "\n", flush=True)
        before = text
        if not is_at_work:
            return
        watch.check()
        time.sleep(interval_s)


def crop(text: str, room: int) -> str:
    """Return as much of a table as there are lines for, and how much is left out. Pure.

    Trials at work are kept, and of the others those at the end: trials begin in this order.
    """
    lines = text.splitlines()
    if len(lines) <= room:
        return text
    head = next((i for i, line in enumerate(lines) if line.startswith("TRIAL ")), 0) + 1
    rows = lines[head:]
    by_interest = sorted(range(len(rows)), key=lambda i: (_is_at_work(rows[i]), i), reverse=True)
    kept = sorted(by_interest[: max(room - head - 1, 0)])
    where = "more" if any(map(_is_at_work, rows)) else "before"
    return "\n".join(
        [*lines[:head], f"({len(rows) - len(kept)} trials {where})", *(rows[i] for i in kept)]
    )


def _is_at_work(row: str) -> bool:
    return row.split()[1:2] in (["RUNNING"], ["PAUSING"], ["STOPPING"])
