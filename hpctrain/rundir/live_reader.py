"""`LiveReader`: reads a run again and again, and each of its files only if it has changed.

A look costs one `stat` a file, and a read of what has changed: of the metrics only the new lines,
of the checkpoints the newest manifest.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.errors import CheckpointError, DamagedFileError
from hpctrain.regular_file import open_regular
from hpctrain.rundir.live import Live, read_live
from hpctrain.rundir.live_view import LiveView, Saved
from hpctrain.rundir.manifest import DamagedManifestError, read_manifest
from hpctrain.rundir.metrics import is_report
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.reading import parse_json
from hpctrain.rundir.speed import Report, measure_goals, measure_speed, read_goals, recent
from hpctrain.rundir.staging import DAMAGED, REPLACED
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status

_LAST_BYTES = 2**20
"""Of the metrics of a run that has begun before the first look."""
_MOST_BYTES = 16 * 2**20
_MOST_POINTS = 512
_MOST_RECENT = 64


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """What the files of a run hold."""

    status: RunStatus | None
    live: Live | None = None
    history: tuple[Report, ...] = ()
    latest: tuple[Report, ...] = ()
    """The last reports, one after the other."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """Stop criteria."""
    saved: Saved = field(default_factory=Saved)
    problem: str = ""
    """Why the status cannot be read."""
    damage: tuple[str, ...] = ()
    """What else is missing or damaged, each as a sentence."""


class LiveReader:
    """Reads the files of one run.

    Parameters
    ----------
    paths
        The run directory.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self._marks: dict[Path, object] = {}
        self._status: RunStatus | None = None
        self._live: Live | None = None
        self._history = _History(paths.metrics)
        self._targets: Mapping[str, float] = {}
        self._saved = Saved()
        self._damage: dict[Path, str] = {}

    def read(self) -> RunFiles:
        """Return what the files hold now. Not collective. Never raises for what is in them."""
        paths, problem = self.paths, ""
        try:
            if self._has_changed(paths.status) or self._status is None:
                self._status = read_status(paths)
        except (OSError, DamagedFileError) as error:
            # A file that cannot be read for a moment does not take the page away.
            self._marks.pop(paths.status, None)
            problem = str(error)
        if self._has_changed(paths.live):
            self._live = read_live(paths)
            self._damage[paths.live] = "" if self._live else _explain_live(paths.live)
        if self._has_changed(paths.metrics):
            self._history.read()
            damaged = f"{paths.metrics} has damaged lines, which are left out."
            self._damage[paths.metrics] = damaged if self._history.is_damaged else ""
        if self._has_changed(paths.plan):
            self._targets, self._damage[paths.plan] = _read_targets(paths)
        if self._has_changed(paths.checkpoints):
            self._saved, self._damage[paths.checkpoints] = _read_saved(paths.checkpoints)
        return RunFiles(
            status=self._status,
            live=self._live,
            history=tuple(self._history.points),
            latest=tuple(self._history.latest),
            targets=self._targets,
            saved=self._saved,
            problem=problem,
            damage=tuple(filter(None, self._damage.values())),
        )

    def _has_changed(self, path: Path) -> bool:
        mark: object = None
        try:
            found = os.lstat(path)
            mark = (found.st_mtime_ns, found.st_size, found.st_ino)
        except OSError:
            pass
        if path in self._marks and self._marks[path] == mark:
            return False
        self._marks[path] = mark
        return True


def make_view(
    files: RunFiles,
    paths: RunPaths,
    *,
    state: str,
    live: bool | None,
    waits: str = "",
    unanswered: str = "",
    now: float,
) -> LiveView:
    """Return a run at one moment. Pure.

    Parameters
    ----------
    files
        What its directory holds.
    paths
        The directory.
    state, live, waits, unanswered
        As of `LiveView`.
    now
        Seconds since the epoch.
    """
    nothing = RunStatus(name=paths.root.name, state=RunState.SUBMITTED, launcher="")
    status = files.status or nothing
    latest = recent(files.latest)
    last = latest[-1] if latest else None
    lacks_reports = (0 if last is None else last.number) < status.reports
    if lacks_reports:
        # Later lines have disappeared.
        last, latest = None, ()
    # Before the first report they need not be there yet.
    damage = list(files.damage) if status.reports else []
    if lacks_reports and not any(str(paths.metrics) in what for what in damage):
        damage.append(f"{paths.metrics}: reports are missing, or not to be seen here yet.")
    ranks = files.live
    is_of_attempt = ranks is not None and ranks.attempt == status.attempt
    return LiveView(
        name=paths.root.name,
        path=paths.root,
        state=state,
        live=live,
        status=status,
        now=now,
        waits=waits,
        unanswered=unanswered,
        reports=status.reports if last is None else last.number,
        reported_at=None if last is None else last.time,
        metrics=status.metrics if last is None else last.metrics,
        history=files.history,
        speed=measure_speed(latest),
        goals=tuple(measure_goals(files.targets, latest)),
        saved=files.saved,
        ranks=ranks if is_of_attempt else None,
        problem=files.problem or " ".join(damage),
    )


class _History:
    """The reports of a run, of many only some, but the last ones one after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self.points: list[Report] = []
        self.latest: deque[Report] = deque(maxlen=_MOST_RECENT)
        self._offset: int | None = None
        self._inode = 0
        self._rest = b""
        self._stride = 1
        self.is_damaged = False
        self._attempt = 0
        self._earlier: set[int] = set()

    def read(self) -> None:
        """Take in what was appended since the last call."""
        try:
            with open_regular(self._path) as file:
                found = os.fstat(file.fileno())
                is_another = found.st_ino != self._inode or found.st_size < (self._offset or 0)
                if is_another:
                    self._begin()
                    self._inode = found.st_ino
                begins = self._offset is None
                if self._offset is None:
                    self._offset = max(0, found.st_size - _LAST_BYTES)
                file.seek(self._offset)
                content = file.read(_MOST_BYTES) or b""
        except OSError:
            return
        skips = begins and self._offset > 0
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines[1:] if skips else lines:
            value = parse_json(line.decode(errors="replace"))
            if is_report(value):
                self._add(value)
            elif line.strip():
                self.is_damaged = True

    def _add(self, line: dict[str, Any]) -> None:
        attempt, number = line["attempt"], line["report"]
        if attempt in self._earlier:
            # Its executor and ranks stood still, and do not know that another has begun.
            return
        if attempt != self._attempt:
            self._earlier.add(self._attempt)
            self._attempt = attempt
            # It makes these reports again, and at another rate.
            self.points = [point for point in self.points if point.number < number]
            self.latest.clear()
        report = Report(number=number, time=float(line["time"]), metrics=line["metrics"])
        self.latest.append(report)
        if number % self._stride == 0 or not self.points:
            self.points.append(report)
        if len(self.points) > _MOST_POINTS:
            self._stride *= 2
            self.points = [p for p in self.points if p.number % self._stride == 0]


def _explain_live(path: Path) -> str:
    if not os.path.lexists(path):
        return f"{path} is missing."
    return f"{path} is damaged, or of a newer hpctrain."


def _read_targets(paths: RunPaths) -> tuple[Mapping[str, float], str]:
    try:
        config = read_plan(paths).get("run_config", {})
    except (OSError, DamagedFileError) as error:
        return {}, _cannot_read(paths.plan, error)
    return read_goals(config.get("stop") if isinstance(config, dict) else None), ""


def _cannot_read(path: Path, error: Exception) -> str:
    return f"{path} cannot be read: {error}".rstrip(".") + "."


def _read_saved(directory: Path) -> tuple[Saved, str]:
    """Return what checkpoints there are, and what is damaged.

    They appear and disappear by rename.
    """
    try:
        with os.scandir(directory) as entries:
            found = {
                entry.name: entry.stat().st_mtime
                for entry in entries
                if entry.name[0] != "."
                and not entry.name.endswith((DAMAGED, REPLACED))
                and entry.is_dir(follow_symlinks=False)
            }
    except FileNotFoundError:
        return Saved(), ""
    except OSError as error:
        return Saved(), _cannot_read(directory, error)
    if not found:
        return Saved(), ""
    has_numbers = all(name.isdecimal() for name in found)
    newest = max(found, key=int) if has_numbers else max(found, key=lambda name: found[name])
    try:
        manifest = read_manifest(directory / newest)
    except (OSError, CheckpointError, DamagedManifestError) as error:
        saved = Saved(count=len(found), newest=newest, created_at=found[newest])
        return saved, _cannot_read(directory / newest, error)
    size = sum(file.size for file in manifest.files)
    saved = Saved(count=len(found), newest=newest, size=size, created_at=manifest.created_at)
    return saved, ""
