"""Prometheus: a file for the textfile collector of node_exporter."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.callback import RunContext
from hpctrain.callbacks.logger import LoggerCallback, numbers
from hpctrain.errors import ConfigError, DamagedFileError
from hpctrain.log import log
from hpctrain.rules import kind, path, seconds
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hpctrain.checkpoint import Checkpoint
    from hpctrain.result import Result

# The collector reads files that end so.
_SUFFIX = ".prom"
_COUNTERS = {
    "hpctrain_reports": "Reports of all ranks since the executor began.",
    "hpctrain_checkpoints": "Checkpoints committed since the executor began.",
    "hpctrain_restarts": "Restarts of the ranks since the executor began.",
    "hpctrain_worker_failures": "Failed ranks since the executor began.",
}


class PrometheusCallback(LoggerCallback):
    """Writes the state and the last metrics of a run into a file that Prometheus collects.

    The file is for the textfile collector of node_exporter, and is replaced as a whole. The gauge
    ``hpctrain_metric`` has each metric that is a number, under its own name in the label ``name``.
    All values have the labels ``run``, the name of the run or ``SWEEP/TRIAL``, and ``job_id``,
    which is empty without Slurm.

    Parameters
    ----------
    textfile
        A file that ends in ``.prom``, or a directory, in which the file is
        ``hpctrain_NAME.prom``. The executor writes it, on its node. Each trial of a sweep has a
        file of its own: ``_SWEEP_TRIAL`` is added to the name.
    interval_s
        Seconds between two writes.
    check
        Whether ``fit()`` refuses a place in which it cannot write. False is for a directory that
        only the nodes of a job have.
    """

    package = "prometheus_client"
    extra = "prometheus"

    def __init__(
        self, textfile: str | PathLike[str], *, interval_s: float = 5.0, check: bool = True
    ) -> None:
        what = "PrometheusCallback"
        self._textfile = os.path.abspath(path(f"{what}(textfile=...)", textfile))
        self._interval_s = seconds(f"{what}(interval_s=...)", interval_s)
        self._check = kind(bool)(f"{what}(check=...)", check)
        self._reset()

    def on_submit(self, parameters: Mapping[str, Any]) -> None:
        """Refuse to start without the library, or a place to write; see `UserCallback`."""
        super().on_submit(parameters)
        self._reset()
        if self._check:
            _refuse_unwritable(self._textfile, file=self._file_of("run"))

    def open(self, run_context: RunContext) -> None:
        """Begin with an attempt."""
        self._see(run_context)

    def log(
        self, run_context: RunContext, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Take a report, and write the file unless it is recent."""
        found = numbers(metrics)
        self.say_left_out(metrics.keys() - found.keys(), "only numbers are values of a gauge")
        with self._access():
            self._see(run_context)
            self._metrics.update(found)
            self._counts["hpctrain_reports"] += 1
            self._counts["hpctrain_checkpoints"] += checkpoint is not None
            self._reported_at = time.time()
        self._write_soon()

    def after_exception(
        self, run_context: RunContext, worker_exceptions: Mapping[int, BaseException]
    ) -> None:
        """Count the ranks that failed."""
        with self._access():
            self._see(run_context)
            self._counts["hpctrain_worker_failures"] += len(worker_exceptions)
        self._write_soon()

    def on_finish(self, run_context: RunContext, result: Result) -> None:
        """Write how the run ended, also of one without a report; see `UserCallback`."""
        self._open(run_context)
        super().on_finish(run_context, result)

    def close(self, run_context: RunContext, state: str) -> None:
        """Write the file a last time."""
        with self._access():
            self._see(run_context)
        self._write(state)
        self._reset()

    def _reset(self) -> None:
        """Forget the run: this object may be pickled, or get another one."""
        if (timer := getattr(self, "_timer", None)) is not None:
            timer.cancel()
        self._timer: threading.Timer | None = None
        # Locks cannot be pickled.
        self._lock: threading.RLock | None = None
        self._context: RunContext | None = None
        self._first_attempt = 0
        self._metrics: dict[str, float] = {}
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._reported_at = 0.0
        self._written_at = float("-inf")
        self._complained = False

    def _access(self) -> threading.RLock:
        if self._lock is None:
            self._lock = threading.RLock()
        return self._lock

    def _see(self, run_context: RunContext) -> None:
        self._context = run_context
        self._first_attempt = self._first_attempt or run_context.attempt
        self._counts["hpctrain_restarts"] = run_context.attempt - self._first_attempt

    def _file_of(self, run: str) -> Path:
        place = Path(self._textfile)
        if place.suffix != _SUFFIX:
            return place / f"hpctrain_{run.replace('/', '_')}{_SUFFIX}"
        # The trials of a sweep have one callback, and run at the same time.
        trial = run.replace("/", "_") if "/" in run else ""
        return place.with_name(f"{place.stem}_{trial}{_SUFFIX}") if trial else place

    def _write_soon(self) -> None:
        """Write now, or as soon as the last write is long enough ago."""
        with self._access():
            wait_s = self._written_at + self._interval_s - time.monotonic()
            if wait_s <= 0:
                self._write()
            elif self._timer is None:
                # What was reported last is seen, although the next report may be hours away.
                self._timer = threading.Timer(wait_s, self._write)
                self._timer.daemon = True
                self._timer.start()

    def _write(self, state: str | None = None) -> None:
        from prometheus_client import CollectorRegistry, generate_latest

        with self._access():
            if self._context is None:
                # The run has ended meanwhile.
                return
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._written_at = time.monotonic()
            file = self._file_of(_name_of(self._context))
            try:
                registry = CollectorRegistry()
                registry.register(_Values([*self._families(self._context, state)]))
                write_atomic(file, generate_latest(registry))
            except (OSError, DamagedFileError) as error:
                # Not raised: it would be logged for each report.
                if not self._complained:
                    log(
                        f"PrometheusCallback cannot write {file}: {error}. It tries again, and "
                        f"says no more of it."
                    )
                self._complained = True

    def _families(self, context: RunContext, state: str | None) -> Iterator[Metric]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            StateSetMetricFamily,
        )

        status = read_status(RunPaths(context.path))
        job_id = (status and status.job_id) or ""
        now = state or ("" if status is None else status.state.value)
        names, values = ("run", "job_id"), (_name_of(context), job_id)
        metrics = GaugeMetricFamily(
            "hpctrain_metric", "Last value of a metric of rank 0.", labels=(*names, "name")
        )
        for name, value in self._metrics.items():
            # JSON allows half of a surrogate pair in a name, UTF-8 does not.
            metrics.add_metric((*values, name.encode(errors="replace").decode()), value)
        yield metrics
        for name, meaning in _COUNTERS.items():
            counter = CounterMetricFamily(name, meaning, labels=names)
            counter.add_metric(values, self._counts[name])
            yield counter
        for name, meaning, number in (
            ("hpctrain_report", "Number of the last report of all ranks.", context.report),
            ("hpctrain_attempt", "Number of the attempt, from 1.", context.attempt),
            ("hpctrain_ranks", "Ranks of the attempt.", context.world_size),
            (
                "hpctrain_report_timestamp_seconds",
                "When the last report was made; 0 before the first.",
                self._reported_at,
            ),
        ):
            gauge = GaugeMetricFamily(name, meaning, labels=names)
            gauge.add_metric(values, number)
            yield gauge
        states = StateSetMetricFamily("hpctrain_state", "State of the run.", labels=names)
        states.add_metric(values, {each.value: each.value == now for each in RunState})
        yield states


def _name_of(context: RunContext) -> str:
    return context.name if context.sweep is None else f"{context.sweep}/{context.name}"


class _Values:
    """What a registry of prometheus_client asks for its metrics."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """Return them."""
        return self._families


def _refuse_unwritable(given: str, *, file: Path) -> None:
    """Refuse a place in which this process cannot write a file.

    Raises
    ------
    ConfigError
        With what is in the way.
    """
    folder = file.parent
    why = ""
    if not folder.is_dir():
        why = f"{folder} is not a directory" if folder.exists() else f"there is no {folder}"
    elif file.is_dir():
        why = f"{file} is a directory"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"user {os.geteuid()} cannot write into {folder}"
    if why:
        raise ConfigError(
            f"PrometheusCallback(textfile={given!r}): {why}. Give a file that ends in "
            f"{_SUFFIX}, or a directory, as in node_exporter --collector.textfile.directory. If "
            f"only the nodes of a job have it: check=False."
        )
