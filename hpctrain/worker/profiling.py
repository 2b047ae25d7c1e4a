"""Profile this rank while it runs, because somebody asks: ``hpctrain profile``."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from hpctrain.control.link import Link
from hpctrain.control.wire import Frame
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.profile_request import ProfileRequest
from hpctrain.worker.sampler import Sampler
from hpctrain.world import World


class StepProfiler(Protocol):
    """What a backend has for profiling by steps."""

    def start(self, steps: int, *, until: float, finish: Callable[[Path | str], None]) -> None:
        """Profile the next steps; give a trace's file away, or why there is none.

        Called in any thread. The file is moved. After `until`, in seconds since the epoch, nobody
        waits for it any more.
        """


_step_profiler: StepProfiler | None = None


def profile_with(profiler: StepProfiler | None) -> None:
    """Say what profiles by steps; None: nothing does any more. Not collective."""
    global _step_profiler
    _step_profiler = profiler


class Profiling:
    """One rank's part of a profile."""

    def __init__(self, paths: RunPaths, world: World) -> None:
        self._paths = paths
        self._world = world
        self._busy = False

    def start(self, frame: Frame) -> None:
        """Begin what is asked for, if this rank is meant. Not collective."""
        request = ProfileRequest.from_json(frame.header["request"])
        if self._world.world_rank not in request.ranks:
            return
        if self._busy:
            self._fail(request, "it is being profiled already")
            return
        self._busy = True
        if request.steps is not None and _step_profiler is not None:
            _step_profiler.start(
                request.steps,
                until=request.until,
                finish=lambda got: self._finish(request, got),
            )
        else:
            Sampler(request.seconds, lambda events: self._write(request, events)).start()

    def _finish(self, request: ProfileRequest, got: Path | str) -> None:
        self._busy = False
        if isinstance(got, str):
            self._fail(request, got)
            return
        target = self._paths.trace_of_rank(request.name, self._world.world_rank)
        try:
            write_atomic(target, got.read_bytes())
        except OSError as error:
            self._fail(request, str(error))
        finally:
            got.unlink(missing_ok=True)

    def _write(self, request: ProfileRequest, events: list[dict[str, Any]]) -> None:
        self._busy = False
        target = self._paths.trace_of_rank(request.name, self._world.world_rank)
        try:
            write_atomic(target, json.dumps({"traceEvents": events}).encode())
        except OSError as error:
            self._fail(request, str(error))

    def _fail(self, request: ProfileRequest, why: str) -> None:
        target = self._paths.trace_of_rank(request.name, self._world.world_rank)
        # A full disk must not end the thread that receives from the executor.
        with suppress(OSError):
            write_atomic(target.with_suffix(".failed"), why.encode())


def answer_profile_requests(link: Link, paths: RunPaths, world: World) -> None:
    """Let a link start profiles, also while the main thread is busy. Not collective."""
    link.handle("profile", Profiling(paths, world).start)
