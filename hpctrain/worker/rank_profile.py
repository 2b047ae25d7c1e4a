"""`RankProfile`: one rank's part of a profile."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpctrain.control.wire import Frame
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.profile_request import ProfileRequest
from hpctrain.worker.profiling import step_profiler
from hpctrain.worker.sampler import Sampler
from hpctrain.world import World


class RankProfile:
    """Profiles one rank, one profile at a time.

    Parameters
    ----------
    paths
        The run directory.
    world
        Where the rank stands.
    """

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
        profiler = step_profiler()
        if request.steps is not None and profiler is not None:
            profiler.start(
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
