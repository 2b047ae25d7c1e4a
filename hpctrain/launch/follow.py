"""Follow a run from its directory, and show in the terminal how it goes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from hpctrain.result import Result
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunStatus, read_status

_LOCAL_INTERVAL_S = 0.2
_REMOTE_INTERVAL_S = 1.0
_REPORT_INTERVAL_S = 1.0


class Tail:
    """What was appended to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> list[str]:
        """Return the complete lines that are new."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        end = content.rfind(b"\n") + 1
        self._offset += end
        return content[:end].decode("utf-8", errors="replace").splitlines()

    def skip_to_end(self) -> None:
        """Begin with what is appended from now on."""
        self._offset = self.path.stat().st_size if self.path.exists() else 0


class Follower:
    """Shows states, reports and what ranks print.

    Parameters
    ----------
    paths
        The run directory.
    verbose
        1: rank 0's output. 2: every rank's.
    out
        Where to.
    from_start
        Whether what was reported before is shown too.
    """

    def __init__(
        self,
        paths: RunPaths,
        *,
        verbose: int = 1,
        out: TextIO | None = None,
        from_start: bool = False,
    ) -> None:
        self._paths = paths
        self._verbose = verbose
        self._out = out or sys.stdout
        self._metrics = Tail(paths.metrics)
        if not from_start:
            self._metrics.skip_to_end()
        self._logs: dict[int, Tail] = {}
        self._attempt = 0
        self._told = ""
        self._held_back: str | None = None
        self._shown_at = 0.0

    def step(self, *, final: bool = False) -> RunStatus | None:
        """Show what is new; return the status. `final` shows also what was held back."""
        status = read_status(self._paths)
        if status is not None:
            self._show_status(status)
            self._show_logs(status)
        self._show_reports(final=final)
        return status

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Follow in a thread while the caller runs the executor."""
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(_LOCAL_INTERVAL_S):
                self.step()

        thread = threading.Thread(target=follow, name="hpctrain-follower", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=5.0)
            self.step(final=True)

    def _show_status(self, status: RunStatus) -> None:
        if status.attempt != self._attempt:
            self._attempt = status.attempt
            self._logs = {}
        told = status.state.value
        if status.state.value == "running":
            told += (
                f" attempt {status.attempt}: {status.world_size} ranks on {', '.join(status.nodes)}"
            )
        elif status.job_id and not status.state.is_final:
            told += f" as job {status.job_id}"
        if told != self._told:
            self._say(f"hpctrain: {status.name} {told}")
        self._told = told

    def _show_logs(self, status: RunStatus) -> None:
        if status.attempt == 0 or not status.world_size:
            return
        ranks = range(status.world_size) if self._verbose > 1 else range(1)
        for rank in ranks:
            if rank not in self._logs:
                self._logs[rank] = Tail(self._paths.rank_log(status.attempt, rank))
            label = f"[{rank}] " if self._verbose > 1 else ""
            for line in self._logs[rank].read():
                self._say(f"{label}{line}")

    def _show_reports(self, *, final: bool) -> None:
        for line in self._metrics.read():
            self._held_back = _format_report(json.loads(line))
        now = time.monotonic()
        if self._held_back and (final or now - self._shown_at >= _REPORT_INTERVAL_S):
            self._say(self._held_back)
            self._held_back, self._shown_at = None, now

    def _say(self, line: str) -> None:
        print(line, file=self._out, flush=True)


def follow_to_end(paths: RunPaths, *, verbose: int) -> Result:
    """Follow a run that another process runs, until it ends; return its result.

    Not collective. The follower can be killed without harm to the run.

    Raises
    ------
    TrainingFailedError
        If the run failed or was stopped.
    LaunchError
        If its job has ended and the executor never said so: it could not begin, or was killed.
    """
    from hpctrain.launch.liveness import Liveness

    follower = Follower(paths, verbose=verbose, from_start=True)
    liveness = Liveness(paths)
    while True:
        status = follower.step() if verbose else read_status(paths)
        if status is not None:
            if status.state.is_final:
                break
            liveness.check(status)
        time.sleep(_REMOTE_INTERVAL_S)
    if verbose:
        follower.step(final=True)
    result = Result.from_path(paths.root)
    if result.error is not None:
        raise result.error
    return result


def _format_report(report: dict[str, Any]) -> str:
    metrics = "  ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in report["metrics"].items()
    )
    saved = f"  checkpoint {report['checkpoint']}" if report["checkpoint"] else ""
    return f"report {report['report']}  {metrics}{saved}"
