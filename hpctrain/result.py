"""`Result`: the result of a run, read from its directory."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.checkpoint import Checkpoint
from hpctrain.checkpoint_config import CheckpointConfig
from hpctrain.errors import (
    CheckpointError,
    ConfigError,
    LaunchError,
    PreemptionError,
    RunStoppedError,
    TrainingFailedError,
    WorkerError,
    WorkerHangError,
)
from hpctrain.host_list import compress_hosts
from hpctrain.log import log
from hpctrain.metric_names import COUNTED, explain_unknown, find_score, flatten, has_metric
from hpctrain.path_string import PathString, expand_home, local_filesystem
from hpctrain.plan import spec
from hpctrain.rundir.history import end_time
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.metrics import add_validated, read_reports, say_if_cut
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.reading import damaged
from hpctrain.rundir.retention import rank_checkpoints
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, explain_gap, read_status
from hpctrain.rundir.store import CheckpointStore
from hpctrain.rundir.trust import read_own, read_spec

if TYPE_CHECKING:
    import pandas
    import pyarrow.fs


# Other fields of a report are not the user's.
_COLUMNS = ("report", "attempt", "time", "checkpoint")


@dataclass(frozen=True)
class Attempt:
    """One start of the ranks."""

    attempt: int
    job_id: str | None
    nodes: tuple[str, ...]
    started_at: float
    """Seconds since the epoch."""
    ended_at: float | None
    cause: str | None
    """Why it ended; None while it runs, or if its executor died and no other has recorded it
    yet."""


class Result:
    """The result of a run: finished, failed or still running.

    Everything is read from the run directory, so a Result is available to everyone, also after all
    processes of the run have ended. A Result that is constructed directly, as in tests for Ray
    Train, has no `status`: it returns its arguments, and no file needs to exist.

    Parameters
    ----------
    metrics, checkpoint
        For direct construction.
    error
        The exception that ``fit()`` raises, or None.
    path
        The run directory.
    metrics_dataframe, best_checkpoints
        For direct construction.
    status
        State and last progress; None after direct construction.

    Raises
    ------
    ConfigError
        If it has no path, or both a status and values that the run directory provides.
    """

    _by_hand: Mapping[str, Any] | None = None
    """Its arguments, by name; None for the result of a run."""

    def __init__(
        self,
        metrics: Mapping[str, Any] | None = None,
        checkpoint: Checkpoint | None = None,
        error: Exception | None = None,
        path: str | PathLike[str] | None = None,
        metrics_dataframe: pandas.DataFrame | None = None,
        best_checkpoints: Sequence[tuple[Checkpoint, dict[str, Any]]] | None = None,
        *,
        status: RunStatus | None = None,
    ) -> None:
        if path is None:
            raise ConfigError("Result() needs path=, the directory of the run.")
        given = {
            "metrics": metrics,
            "checkpoint": checkpoint,
            "metrics_dataframe": metrics_dataframe,
            "best_checkpoints": best_checkpoints,
        }
        if status is None:
            self._by_hand = given
            # Replaces values from files.
            vars(self).update(metrics={} if metrics is None else dict(metrics))
            if metrics_dataframe is not None:
                vars(self).update(metrics_dataframe=metrics_dataframe)
            state = RunState.FINISHED if error is None else RunState.FAILED
            status = RunStatus(name=Path(path).name, state=state, launcher="")
        elif any(one is not None for one in given.values()):
            raise ConfigError(
                "Result(status=...) reads the rest from the run directory: leave it out, or leave "
                "status out."
            )
        self.path = PathString(path)
        """The run directory: a string, as in Ray Train, that works as a ``pathlib.Path`` too."""
        self.status = status
        """State, job, nodes and last progress."""
        self.error = error
        """Why the run failed; None if it did not."""
        self._paths = RunPaths(Path(path))
        self._store = CheckpointStore(self._paths.checkpoints)

    @property
    def filesystem(self) -> pyarrow.fs.LocalFileSystem:
        """Arrow's filesystem of `path`, always the local one. Needs pyarrow."""
        return local_filesystem()

    def __repr__(self) -> str:
        """Return a short line."""
        metrics = {name: self.metrics[name] for name in list(self.metrics)[:6]}
        if self._by_hand is not None:
            checkpoint = self.checkpoint
            # As Ray Train shows a checkpoint here.
            shown = checkpoint and f"Checkpoint(filesystem=local, path={checkpoint.path})"
            error = f", error={type(self.error).__name__}" if self.error else ""
            return f"Result(metrics={metrics}, path={str(self.path)!r}, checkpoint={shown}{error})"
        return (
            f"Result(state={self.state!r}, metrics={metrics}, path={str(self.path)!r}"
            + (f", checkpoint={self.status.checkpoint!r}" if self.status.checkpoint else "")
            + (f", error={type(self.error).__name__}" if self.error else "")
            + ")"
        )

    def _repr_html_(self) -> str:
        """Return the display in a notebook: the state, the curves and the last metrics."""
        from hpctrain.rundir.html import render_run

        facts = {
            "path": str(self.path),
            "nodes": compress_hosts(self.nodes),
            "reports": str(len(self._reports)),
            "restarted": self.status.last_restart,
            "checkpoint": self.status.checkpoint or "",
        }
        return render_run(
            name=self.status.name,
            state=self.state,
            facts={name: fact for name, fact in facts.items() if fact},
            history=self.metrics_history,
            error=None if self.error is None else str(self.error),
        )

    @classmethod
    def from_path(cls, path: str | PathLike[str]) -> Result:
        """Return the result of the run in a directory. Not collective.

        Raises
        ------
        ConfigError
            If the directory is not a run.
        """
        root = expand_home(path).absolute()
        status = read_status(RunPaths(root))
        if status is None:
            found = "does not exist" if not root.exists() else "has no status.json"
            raise ConfigError(
                f"{root} {found}: it is not a run of hpctrain. 'hpctrain list STORAGE_PATH' shows "
                f"the runs of a directory."
            )
        if status.damage:
            log(f"warning: {status.damage}. The result is rebuilt from the ledger.")
        return cls(path=root, status=status, error=_stored_error(RunPaths(root), status))

    @property
    def state(self) -> str:
        """The state in ``status.json``: ``submitted``, ``running``, ``finished``, ..."""
        return self.status.state.value

    @functools.cached_property
    def metrics(self) -> dict[str, Any]:
        """Rank 0's metrics of the last report; empty if there was none."""
        return dict(self._reports[-1]["metrics"]) if self._reports else {}

    @functools.cached_property
    def metrics_dataframe(self) -> pandas.DataFrame:
        """All reports of rank 0, one row each, with or without a checkpoint. Needs pandas.

        The columns ``report``, ``attempt``, ``time`` (seconds since the epoch) and ``checkpoint``
        come before the metrics'.
        """
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(
                "Result.metrics_dataframe needs pandas: pip install 'hpctrain[pandas]'. "
                "Result.metrics_history is the same as a list of dicts."
            ) from error
        return pandas.DataFrame(
            [
                {**{k: report[k] for k in _COLUMNS if k in report}, **report["metrics"]}
                for report in self._reports
            ]
        )

    @property
    def metrics_history(self) -> list[dict[str, Any]]:
        """Rank 0's metrics of every report, oldest first."""
        return [dict(report["metrics"]) for report in self._reports]

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        if self._by_hand is not None:
            return cast("Checkpoint | None", self._by_hand["checkpoint"])
        manifests = self._manifests
        return self._store.open(manifests[-1]) if manifests else None

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """Complete checkpoints with their metrics, the best one last.

        Ray Train's order: from the worst to the best score of the run's CheckpointConfig, from the
        oldest to the newest without one.
        """
        if self._by_hand is not None:
            return list(self._by_hand["best_checkpoints"] or ())
        ranked = rank_checkpoints(self._manifests, self._checkpoint_config())
        return [(self._store.open(m), dict(m.metrics)) for m in reversed(ranked)]

    def get_best_checkpoint(self, metric: str, mode: Literal["max", "min"]) -> Checkpoint | None:
        """Return the best complete checkpoint by a metric, or None if there is none.

        Not collective.

        Raises
        ------
        ConfigError
            If no checkpoint has the metric.
        """
        if self._by_hand is not None:
            return self._best_by_hand(metric, mode)
        config = CheckpointConfig(checkpoint_score_attribute=metric, checkpoint_score_order=mode)
        manifests = self._manifests
        is_known = metric == COUNTED[0] or any(has_metric(m.metrics, metric) for m in manifests)
        if manifests and not is_known:
            raise self._unknown_metric(metric, [m.metrics for m in manifests])
        ranked = rank_checkpoints(manifests, config)
        return self._store.open(ranked[0]) if ranked else None

    def _best_by_hand(self, metric: str, mode: Literal["max", "min"]) -> Checkpoint | None:
        CheckpointConfig(checkpoint_score_attribute=metric, checkpoint_score_order=mode)
        pairs = self.best_checkpoints
        scores = [find_score(metrics, metric) for _, metrics in pairs]
        scored = [(s, c) for s, (c, _) in zip(scores, pairs, strict=True) if s is not None]
        if pairs and not scored:
            raise self._unknown_metric(metric, [metrics for _, metrics in pairs])
        choose = max if mode == "max" else min
        return choose(scored, key=lambda pair: pair[0])[1] if scored else None

    def _unknown_metric(self, name: str, reported: Sequence[Mapping[str, Any]]) -> ConfigError:
        known = {one for metrics in reported for one in flatten(metrics)}
        return ConfigError(
            f"no checkpoint of {self.path} has the metric {name!r}. {explain_unknown(name, known)}"
        )

    @functools.cached_property
    def return_value(self) -> Any:
        """The return value of rank 0's training function.

        This unpickles: open only runs that you trust.
        """
        try:
            content = read_own(self._paths.return_value)
        except FileNotFoundError:
            return None
        return spec.unpack(content)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Configuration of the run: ``{"train_loop_config": {...}}``.

        This unpickles: open only runs that you trust.
        """
        run_spec = spec.RunSpec.from_bytes(read_spec(self._paths))
        return {"train_loop_config": dict(spec.unpack(run_spec.worker).train_loop_config or {})}

    @property
    def job_ids(self) -> list[str]:
        """Slurm jobs that the run has used, in order."""
        ids = [attempt.job_id for attempt in self.attempts]
        return list(dict.fromkeys(i for i in (*ids, self.status.job_id) if i is not None))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Host names of the last attempt, by node rank."""
        return self.status.nodes

    @functools.cached_property
    def attempts(self) -> list[Attempt]:
        """Every start of the ranks, from the ledger."""
        events = read_events(self._paths)
        if gap := explain_gap(events, self.status):
            log(f"warning: {self._paths.ledger} is damaged: {gap}.")
        ends = {e["attempt"]: e for e in events if e["event"] == "attempt-ended"}
        attempts = []
        for event in events:
            if event["event"] == "attempt-started":
                end = ends.get(event["attempt"], {})
                attempts.append(
                    Attempt(
                        attempt=event["attempt"],
                        job_id=event.get("job_id"),
                        nodes=_names(end.get("nodes")),
                        started_at=event["time"],
                        ended_at=end_time(end) if end else None,
                        cause=end.get("cause"),
                    )
                )
        return attempts

    @property
    def timings(self) -> dict[str, float]:
        """Seconds: ``total`` since the run began, ``training`` in attempts, ``lost`` between."""
        training = sum(a.ended_at - a.started_at for a in self.attempts if a.ended_at is not None)
        end = self.status.ended_at or self.status.updated_at
        begin = min([self.status.started_at, *(a.started_at for a in self.attempts)])
        return {"total": end - begin, "training": training, "lost": end - begin - training}

    @functools.cached_property
    def _reports(self) -> list[dict[str, Any]]:
        reports = read_reports(self._paths)
        add_validated(reports, read_events(self._paths))
        say_if_cut(self._paths, self.status, last=reports[-1]["report"] if reports else 0)
        return reports

    @functools.cached_property
    def _manifests(self) -> list[Manifest]:
        entries = self._store.entries()
        for entry in entries:
            if entry.problem is not None:
                # A handle on an older checkpoint looks like one on the newest.
                log(f"warning: {entry.problem} It is left out.")
        return [entry.manifest for entry in entries if entry.manifest is not None]

    def _checkpoint_config(self) -> CheckpointConfig:
        try:
            plan = read_plan(self._paths)
        except FileNotFoundError:
            return CheckpointConfig()
        stored = plan.get("run_config", {}).get("checkpoint_config", {})
        try:
            return CheckpointConfig(**stored)
        except (ConfigError, TypeError) as error:
            raise damaged(self._paths.plan, str(error)) from error


def _names(nodes: object) -> tuple[str, ...]:
    return tuple(map(str, nodes)) if isinstance(nodes, list) else ()


def _stored_error(paths: RunPaths, status: RunStatus) -> Exception | None:
    if status.state is RunState.STOPPED:
        return RunStoppedError(status.error or "the run was stopped")
    if status.state not in (RunState.FAILED, RunState.REFUSED):
        return None
    message = status.error or "the run failed"
    if status.error_type in ("WorkerError", "WorkerHangError"):
        kind = WorkerError if status.error_type == "WorkerError" else WorkerHangError
        blamed = re.match(r"rank (-?\d+) of \d+ on (\S+) (?:failed|hangs)", message)
        rank, hostname = (int(blamed.group(1)), blamed.group(2)) if blamed else (-1, "")
        return kind(message, rank=rank, hostname=hostname)
    known = (ConfigError, LaunchError, CheckpointError, PreemptionError, UnreadableError)
    kinds: dict[str, type[Exception]] = {kind.__name__: kind for kind in known}
    return kinds.get(status.error_type or "", TrainingFailedError)(message)
