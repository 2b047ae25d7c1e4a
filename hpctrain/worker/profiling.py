"""Profile this rank while it runs, when ``hpctrain profile`` asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class StepProfiler(Protocol):
    """What a backend has for profiling by steps."""

    def start(self, steps: int, *, until: float, finish: Callable[[Path | str], None]) -> None:
        """Profile the next steps; give a trace's file away, or why there is none.

        Called in any thread. The file is moved. After `until`, in seconds since the epoch, it is
        not waited for any more.
        """


_step_profiler: StepProfiler | None = None


def profile_with(profiler: StepProfiler | None) -> None:
    """Say what profiles by steps; None: nothing does any more. Not collective."""
    global _step_profiler
    _step_profiler = profiler


def step_profiler() -> StepProfiler | None:
    """Return what profiles by steps, if something does. Not collective."""
    return _step_profiler
