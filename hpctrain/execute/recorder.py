"""`Recorder`: writes down what the ranks report. The executor's hand on the run directory."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.callback import RunContext, UserCallback
from hpctrain.checkpoint import Checkpoint
from hpctrain.config import RunConfig
from hpctrain.environ import restart_count
from hpctrain.errors import (
    CheckpointError,
    HpctrainError,
    LaunchError,
    RunStoppedError,
    TrainingFailedError,
)
from hpctrain.execute.failure_policy import StopKind, StopNotice, classify_failure
from hpctrain.execute.health import Verdict
from hpctrain.execute.tracker import AttemptTracker, ReportRound
from hpctrain.result import Result
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.history import (
    FailureKind,
    History,
    has_open_executor,
    read_history,
    unfinished_attempts,
)
from hpctrain.rundir.ledger import append_event, read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunState, RunStatus, read_status, write_status
from hpctrain.rundir.store import CheckpointStore
from hpctrain.worker.failure import RankFailure

STATUS_INTERVAL_S = 2.0


@dataclass(frozen=True, kw_only=True)
class AttemptStart:
    """Where an attempt begins."""

    attempt: int
    """Number of the attempt, from 1."""
    first_report: int
    """Number of the report that it resumes from; 0 at a fresh start."""
    checkpoint: Checkpoint | None
    """What it resumes from."""


class Recorder:
    """Commits checkpoints, calls callbacks, keeps the status. One for a run, over all attempts.

    Parameters
    ----------
    paths
        The run directory.
    run_config
        Callbacks, retention, stop rule.
    status
        State to start from.
    """

    def __init__(self, *, paths: RunPaths, run_config: RunConfig, status: RunStatus) -> None:
        self.paths = paths
        self.store = CheckpointStore(paths.checkpoints)
        self._config = run_config
        self._status = status
        self._previous = read_status(paths)
        self._written_at = 0.0
        self._last_line = b""
        self.latest: Checkpoint | None = None
        """The newest complete checkpoint."""
        self.stop: StopNotice | None = None
        """That the run should stop, once it should."""
        self._resumed_from: str | None = None
        self._recorded = 0
        self._saved = 0
        # Kept here too: with a full disk the ledger does not grow, and what is counted must.
        self._events = read_events(paths)

    @property
    def history(self) -> History:
        """What has gone wrong so far, over all jobs of the run."""
        return read_history(self._events)

    @property
    def wants_stop(self) -> str | None:
        """Why the run should stop, once it should."""
        return None if self.stop is None else self.stop.why

    def ask_to_stop(self, notice: StopNotice) -> None:
        """Let the run stop; a person's request replaces what was there before."""
        if self.stop is None or notice.kind is StopKind.REQUEST:
            self.stop = notice

    @property
    def status(self) -> RunStatus:
        """The status as it was last changed."""
        return self._status

    def change(self, **changes: Any) -> None:
        """Change the status and write it."""
        self._status = self._status.with_changes(**changes)
        self._written_at = time.monotonic()
        try:
            self._status = write_status(self.paths, self._status)
        except OSError as error:
            self._complain("status.json", error)

    def tick(self, *, phase: str, reports: int) -> None:
        """Write the status if it is old, and look for a request to stop."""
        if time.monotonic() - self._written_at < STATUS_INTERVAL_S:
            return
        self.change(phase=phase, reports=reports, **self._progress())
        self.look_for_request()

    def look_for_request(self) -> None:
        """See if a person wants the run to stop."""
        if self.paths.stop_request.exists():
            self.ask_to_stop(
                StopNotice(kind=StopKind.REQUEST, why="it was asked to (hpctrain cancel)")
            )

    def begin(self) -> None:
        """Write down that an executor begins, and how the last one ended if it could not."""
        if has_open_executor(self._events):
            last = self._previous
            self.note("executor-ended", until=time.time() if last is None else last.updated_at)
        self.note("executor-started", job_id=self._status.job_id, restarts=restart_count())
        self.change(state=RunState.STARTING)

    def hand_over(self) -> None:
        """Write down that this executor ends and the run goes on: before it is so."""
        self.note("executor-ended")
        metrics = self.progress() or self._status.metrics
        self.change(state=RunState.SUBMITTED, phase="", metrics=metrics)

    def name_successor(self, job_id: str) -> None:
        """Write down which job goes on, unless it has begun already: its word then stands."""
        present = read_status(self.paths)
        if present is not None and present.job_id == self._status.job_id:
            self.change(job_id=job_id)

    def begin_attempt(self, resume_from: Path | None) -> AttemptStart:
        """Find what to resume from, and write the attempt into the ledger.

        Parameters
        ----------
        resume_from
            Checkpoint of another run, for when this one has none yet.
        """
        attempt = sum(event["event"] == "attempt-started" for event in self._events) + 1
        self.store.prepare()
        manifest, complaints = self.store.newest_good()
        self._saved = 0 if manifest is None else manifest.report
        for complaint in complaints:
            self.note("checkpoint-damaged", error=complaint)
            print(f"hpctrain: {complaint} It is set aside.", file=sys.stderr, flush=True)
        if manifest is None:
            self.latest = None
            self._resumed_from = None
            checkpoint = None if resume_from is None else Checkpoint(resume_from)
        else:
            self.latest = checkpoint = self.store.open(manifest)
            self._resumed_from = manifest.name
        start = AttemptStart(
            attempt=attempt,
            first_report=0 if manifest is None else manifest.report,
            checkpoint=checkpoint,
        )
        self._recorded = start.first_report
        self.change(
            state=RunState.STARTING,
            attempt=attempt,
            phase="launch",
            checkpoint=None if manifest is None else manifest.name,
            reports=start.first_report,
            error=None,
            error_type=None,
            ended_at=None,
        )
        self.note(
            "attempt-started",
            attempt=attempt,
            job_id=self._status.job_id,
            restarts=restart_count(),
            host=socket.gethostname(),
            resumed_from=None if checkpoint is None else str(checkpoint.path),
            first_report=start.first_report,
        )
        return start

    def end_attempt(self, *, error: BaseException | None, reports: int) -> None:
        """Write into the ledger how an attempt ended."""
        cause = "finished"
        if error is not None:
            first_line = (str(error).splitlines() or [""])[0]
            cause = f"{type(error).__name__}: {first_line}"
        self.note(
            "attempt-ended",
            attempt=self._status.attempt,
            cause=cause,
            kind=self._failure_kind(error),
            reports=reports,
            saved=self._saved,
            nodes=list(self._status.nodes),
        )
        self._status = self._status.with_changes(reports=reports)
        if self._resumed_from is not None:
            self._resumed_from = None
            self._retain()

    def _failure_kind(self, error: BaseException | None) -> FailureKind | None:
        if self.stop is not None and isinstance(error, (TrainingFailedError, LaunchError)):
            # Whatever ranks say while their job is taken away from them is an effect of it.
            return self.stop.kind.failure
        return classify_failure(error)

    def close_dead_attempts(self) -> FailureKind | None:
        """Write into the ledger how attempts ended whose executor died without a word.

        Returns
        -------
        FailureKind or None
            How the last of them ended; None if there is none that counts against a budget.
        """
        kind = None
        for event in unfinished_attempts(self._events):
            cause, kind = self._explain_dead_attempt(event)
            manifests = self.store.manifests()
            saved = max((m.report for m in manifests), default=0)
            self.note(
                "attempt-ended",
                attempt=event["attempt"],
                cause=cause,
                kind=kind,
                reports=saved,
                saved=saved,
                nodes=[],
            )
        return kind if self.history.failures else None

    def _explain_dead_attempt(self, started: Mapping[str, Any]) -> tuple[str, FailureKind]:
        job_id = started["job_id"]
        same_start = (job_id, started.get("restarts")) == (self._status.job_id, restart_count())
        if job_id is None or same_start:
            return f"the executor on {started['host']} died", FailureKind.START
        return f"job {job_id} was taken away without a warning", FailureKind.PREEMPTION

    def record(self, round_: ReportRound, broadcast: Callable[..., None]) -> None:
        """Take in a report of all ranks: commit its checkpoint, call callbacks, apply the rule."""
        self._last_line = round_.lines[0]
        checkpoint = self._commit(round_, broadcast) if round_.parts else None
        if self._config.callbacks:
            metrics = [round_.metrics(rank) for rank in sorted(round_.lines)]
            self.call("after_report", metrics, checkpoint)
        if self._config.stop is not None and self.stop is None:
            self._apply_stop_rule(round_)
        self._recorded = round_.report

    def answer(self, tracker: AttemptTracker, broadcast: Callable[..., None]) -> None:
        """Tell ranks that ask which checkpoints there are, once all that they made are recorded."""
        due = {report for report in tracker.asked if report <= self._recorded}
        if due:
            tracker.asked -= due
            found = [
                [str(self.store.open(manifest).path), dict(manifest.metrics)]
                for manifest in self.store.manifests()
            ]
            broadcast("checkpoints", json.dumps(found).encode(), report=self._recorded)

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook of every callback; one that raises is logged, and ends the run if fatal."""
        context = RunContext(
            name=self._status.name,
            path=self.paths.root,
            attempt=self._status.attempt,
            world_size=self._status.world_size,
        )
        for callback in self._config.callbacks:
            try:
                self._call_one(callback, hook, context, *args)
            except Exception as error:
                described = f"{type(callback).__name__}.{hook}: {type(error).__name__}: {error}"
                self.note("callback-failed", error=described)
                print(f"hpctrain: callback failed: {described}", file=sys.stderr, flush=True)
                if callback.fatal:
                    raise

    def progress(self) -> dict[str, Any]:
        """Return rank 0's last metrics."""
        return dict(self._progress().get("metrics", {}))

    def keep_return_value(self, content: bytes) -> None:
        """Store what rank 0's training function returned."""
        if content:
            write_atomic(self.paths.return_value, content, mode=0o600)

    def keep_failures(self, failures: Iterable[RankFailure]) -> None:
        """Store what failed ranks said of themselves."""
        for failure in failures:
            path = self.paths.failure(self._status.attempt, max(failure.rank, 0))
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, json.dumps(failure.to_json(), indent=1).encode())
            except OSError as error:
                self._complain(path.name, error)

    def raise_if_stopped(self, reports: int, *, told: bool = True) -> None:
        """Raise if the ranks returned because they were told to, not because a goal was reached.

        Parameters
        ----------
        told
            Whether a rank knew that it should stop. One that did not has come to its own end.

        Raises
        ------
        RunStoppedError
            With what the run resumes from.
        """
        if self.stop is not None and self.stop.kind is not StopKind.GOAL and told:
            raise RunStoppedError(
                f"the run stopped because {self.wants_stop}, at report {reports}. It resumes from "
                f"{self.checkpoint_path() or 'its beginning'} at the next fit()."
            )

    def end(self, error: BaseException | None) -> None:
        """Write down how the run ended, and tell the callbacks."""
        message: str | None = None
        if error is None:
            state = RunState.FINISHED
        elif isinstance(error, (RunStoppedError, KeyboardInterrupt, SystemExit)):
            state = RunState.STOPPED
            message = (
                str(error) or "it was interrupted (Ctrl-C); fit() with the same name resumes it"
            )
        else:
            state = RunState.FAILED
            ours = isinstance(error, HpctrainError)
            message = str(error) if ours else f"{type(error).__name__}: {error}"
        self.change(
            state=state,
            stalled="",
            error=message,
            error_type=None if error is None else type(error).__name__,
            ended_at=time.time(),
            metrics=self.progress() or self._status.metrics,
        )
        self.note("executor-ended")
        self.note("run-ended", state=state.value, error=message)
        self.call("on_finish", Result.from_path(self.paths.root))

    def note(self, event: str, **details: Any) -> None:
        """Append an event to the ledger."""
        self._events.append({"event": event, "time": time.time(), **details})
        try:
            append_event(self.paths, event, **details)
        except OSError as error:
            self._complain("ledger.jsonl", error)

    def note_health(self, verdict: Verdict) -> None:
        """Write down what is wrong with nodes, and say what does not end the run."""
        of = {"job_id": self._status.job_id, "attempt": self._status.attempt}
        for node, reason in verdict.bad.items():
            self.note("node-bad", node=node, reason=reason, **of)
        for node, reason in verdict.doubtful.items():
            self.note("node-doubtful", node=node, reason=reason, **of)
            print(f"hpctrain: {node} is used, but {reason}.", file=sys.stderr, flush=True)

    def _complain(self, what: str, error: OSError) -> None:
        # A full disk must not end a run whose ranks may never write to it; they say so themselves.
        print(
            f"hpctrain: cannot write {what} in {self.paths.root}: {error.strerror}",
            file=sys.stderr,
            flush=True,
        )

    def _call_one(self, callback: UserCallback, hook: str, context: RunContext, *args: Any) -> None:
        getattr(callback, hook)(context, *args)

    def _commit(self, round_: ReportRound, broadcast: Callable[..., None]) -> Checkpoint | None:
        try:
            checkpoint, conflicts = self.store.commit(
                attempt=self._status.attempt,
                report=round_.report,
                world_size=self._status.world_size,
                metrics=round_.metrics(),
                parts=round_.parts,
            )
        except (OSError, CheckpointError) as error:
            reason = str(error)
            if isinstance(error, OSError):
                reason = f"{error.strerror or error} ({error.filename})"
            broadcast("committed", report=round_.report, path=None, error=reason)
            return None
        self.latest = checkpoint
        self._saved = round_.report
        broadcast("committed", report=round_.report, path=str(checkpoint.path), error=None)
        if conflicts:
            print(
                f"hpctrain: checkpoint {checkpoint.path.name}: ranks saved different content under "
                f"the same name; the lowest rank's was kept: {', '.join(conflicts)}",
                file=sys.stderr,
                flush=True,
            )
        self._retain()
        self._status = self._status.with_changes(checkpoint=checkpoint.path.name)
        return checkpoint

    def _retain(self) -> None:
        # Ranks may read what the attempt resumed from for as long as it lasts.
        protected = () if self._resumed_from is None else (self._resumed_from,)
        try:
            self.store.retain(self._config.checkpoint_config, protected=protected)
        except OSError as error:
            self._complain("checkpoints/", error)

    def _apply_stop_rule(self, round_: ReportRound) -> None:
        rule = self._config.stop
        metrics = round_.metrics()
        if isinstance(rule, Mapping):
            met = [name for name, goal in rule.items() if _reached(metrics.get(name), goal)]
            if met:
                why = f"{met[0]}={metrics[met[0]]} reached {rule[met[0]]}"
                self.ask_to_stop(StopNotice(kind=StopKind.GOAL, why=why))
        elif rule is not None and rule(round_.report, metrics):
            self.ask_to_stop(StopNotice(kind=StopKind.GOAL, why="the stop function said so"))

    def _progress(self) -> dict[str, Any]:
        if not self._last_line:
            return {}
        return {"metrics": json.loads(self._last_line)["metrics"]}

    def checkpoint_path(self) -> Path | None:
        """Return where the newest complete checkpoint lies."""
        return None if self.latest is None else self.latest.path


def _reached(value: Any, goal: float) -> bool:
    # Ray Train's rule: a stop criterion is met when the metric is at least the value.
    return isinstance(value, (int, float)) and value >= goal
