"""`Sweep`: the loop that gives trials slots, reads their reports and decides which go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hpctrain import timeouts
from hpctrain.errors import ConfigError, HpctrainError, RunStoppedError, TrainingFailedError
from hpctrain.metric_names import all_names, explain_unknown, has_metric
from hpctrain.rundir.display import format_metrics
from hpctrain.tune.ledger import NAME_OF, SweepLedger
from hpctrain.tune.node_slots import NodeSlots
from hpctrain.tune.runner import End, Report, TrialRunner
from hpctrain.tune.schedulers.scheduler import TrialScheduler
from hpctrain.tune.search.searcher import SearchAlgorithm
from hpctrain.tune.slots import Slots
from hpctrain.tune.source import ConfigSource
from hpctrain.tune.trial import Trial, TrialEvent, TrialState, name_trial

_POLL_S = 0.1
_AT_WORK = (TrialState.RUNNING, TrialState.STOPPING)


@dataclass(frozen=True, kw_only=True)
class SweepRules:
    """What ends a sweep, or a trial, besides the scheduler."""

    metric: str | None = None
    """Must be in the first report of each trial."""
    time_budget_s: float = math.inf
    fail_fast: bool | Literal["raise"] = False
    """Whether the first trial that fails ends all."""
    stop_patience_s: float = timeouts.TRIAL_STOP_S
    """Seconds after which a trial that was asked to stop is ended."""


class Sweep:
    """Runs trials until there are no more.

    Parameters
    ----------
    source
        Gives configurations.
    scheduler
        Decides which trials go on.
    search
        Is sent what trials report; None if nothing learns from it.
    runner
        Runs them.
    slots
        What fits at the same time.
    ledger
        Is written before anything is done.
    rules
        What else ends them.
    show
        Is sent a line when a trial begins or ends.
    why_leave
        Returns why the job of this process is about to end; empty as long as it is not.
    clock, sleep
        Of the time that passes.
    """

    def __init__(
        self,
        *,
        source: ConfigSource,
        scheduler: TrialScheduler,
        search: SearchAlgorithm | None,
        runner: TrialRunner,
        slots: Slots | NodeSlots,
        ledger: SweepLedger,
        rules: SweepRules,
        show: Callable[[str], None] = lambda line: None,
        why_leave: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.trials: dict[str, Trial] = {}
        self.reason = ""
        """Why no more trials begin; empty if there is no reason but their number."""
        self._source, self._scheduler, self._search = source, scheduler, search
        self._runner, self._slots, self._ledger = runner, slots, ledger
        self._rules, self._show, self._clock, self._sleep = rules, show, clock, sleep
        self._why_leave, self._cut_off = why_leave, ""
        self._error: HpctrainError | None = None
        self._stopping_since: dict[str, float] = {}
        self._has_begun = False
        self._is_starved = False
        self._is_interrupted = False

    def run(self) -> None:
        """Run all trials. Not collective.

        Raises
        ------
        HpctrainError
            If the first trial cannot be started, a trial lacks the metric, or one failed and
            `fail_fast` is ``"raise"``; all others have been stopped then.
        RunStoppedError
            If the job of this process is about to end, once all trials have stopped.
        KeyboardInterrupt
            After Ctrl-C, once all trials have stopped.
        """
        deadline = self._clock() + self._rules.time_budget_s
        try:
            while self._step():
                if why := self._cut_off or self._why_leave():
                    raise RunStoppedError(f"the sweep stopped because {why}.")
                if self._clock() >= deadline and not self.reason:
                    self._finish_early(f"time_budget_s={self._rules.time_budget_s:g} is over")
                self._sleep(_POLL_S)
        except KeyboardInterrupt:
            self._interrupt()
            raise
        except BaseException:
            self._interrupt()
            raise
        if self._error is not None:
            raise self._error

    def adopt(self, trials: Mapping[str, Trial]) -> None:
        """Take over the trials of a sweep whose tuner has ended. Not collective.

        Runs that go on are attached to. What learns from reports is sent them again, in their order
        in time.

        Parameters
        ----------
        trials
            As the ledger has them.
        """
        self.trials = {**trials}
        reports = []
        for trial_id, trial in self.trials.items():
            self._scheduler.on_trial_add(trial_id)
            if self._search is not None:
                self._search.restore_trial(trial_id, trial.config)  # type: ignore[attr-defined]
            reports += [(r.time, trial_id, r.number, r) for r in self._runner.history(trial)]
        last_decisions: dict[str, str] = {}
        for _, trial_id, number, report in sorted(reports, key=lambda each: each[:3]):
            trial = self.trials[trial_id]
            if trial.stopped_after is None or number <= trial.stopped_after:
                last_decisions[trial_id] = self._learn(trial, report)
            if number >= trial.reports:
                trial.reports, trial.metrics = number, report.metrics
        for trial in self.trials.values():
            if trial.state.is_final:
                self._note_end(trial, was_stopped=trial.stopped_after is not None)
            elif trial.state in _AT_WORK:
                self._take_over(trial, last_decisions.get(trial.trial_id, ""))

    def _take_over(self, trial: Trial, decision: str) -> None:
        if not self._runner.attach(trial):
            self._change(trial, TrialEvent.INTERRUPTED)
            return
        self._slots.keep(trial.trial_id, self._runner.need_of(trial), trial.slot)
        self._has_begun = True
        self._show(f"{trial.trial_id} goes on")
        if trial.state is TrialState.STOPPING:
            self._ask_to_stop(trial)
        elif decision == TrialScheduler.STOP:
            self._stop(trial, f"stopped by the scheduler after report {trial.reports}")

    def retry(self, trial: Trial) -> None:
        """Let a trial that failed run again. Not collective."""
        self._change(trial, TrialEvent.RETRY)

    def _step(self) -> bool:
        """Do what is to be done now; return whether there is more to come."""
        if not self.reason:
            self._start_what_fits()
        for trial in self._at_work():
            look = self._runner.look(trial)
            for report in look.reports:
                self._take_report(trial, report)
            if look.end is not None:
                self._take_end(trial, look.end)
            elif self._is_late(trial):
                self._runner.end(trial)
        return bool(self._at_work()) or (not self.reason and not self._is_starved)

    def _at_work(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.state in _AT_WORK]

    def _start_what_fits(self) -> None:
        while (trial := self._next()) is not None:
            try:
                need = self._runner.need_of(trial)
                slot = self._slots.take(trial.trial_id, need)
                if slot is None:
                    # Those that come after it wait, too: a large trial would never begin.
                    return
                trial.slot = slot
                self._begin(trial)
            except HpctrainError as error:
                self._slots.give_back(trial.trial_id)
                if not self._has_begun and isinstance(error, ConfigError):
                    self._change(trial, TrialEvent.INTERRUPTED)
                    raise
                self._fail(trial, str(error))
                if self.reason:
                    return

    def _next(self) -> Trial | None:
        """Return the trial that is to begin next; None if there is none now."""
        for trial in self.trials.values():
            if trial.state is TrialState.PENDING:
                return trial
        number = len(self.trials)
        self._is_starved = False
        if self._source.is_done(number):
            self._is_starved = True
            return None
        if not self._slots.has_room:
            # What is proposed later knows more.
            return None
        trial_id = name_trial(number)
        config = self._source.next(number, trial_id)
        if config is None:
            # With nothing at work there is nothing that could change its mind.
            self._is_starved = not self._at_work()
            return None
        trial = Trial(trial_id=trial_id, config=config)
        self._ledger.add_trial(trial)
        self._scheduler.on_trial_add(trial_id)
        self.trials[trial_id] = trial
        return trial

    def _begin(self, trial: Trial) -> None:
        self._change(trial, TrialEvent.STARTED, **trial.slot.to_json())
        self._runner.start(trial)
        self._has_begun = True
        self._show(f"{trial.trial_id} begins: {_describe(trial.config)}")

    def _take_report(self, trial: Trial, report: Report) -> None:
        if report.number <= trial.reports:
            return
        is_first = trial.reports == 0 and not self._is_interrupted
        if is_first and self._rules.metric is not None:
            self._check_metric(trial, report, self._rules.metric)
        trial.reports, trial.metrics = report.number, report.metrics
        if trial.state is not TrialState.RUNNING or self._is_interrupted:
            return
        if self._learn(trial, report) == TrialScheduler.STOP:
            self._stop(trial, f"stopped by the scheduler after report {report.number}")

    def _learn(self, trial: Trial, report: Report) -> str:
        decision = self._scheduler.on_result(trial.trial_id, report.metrics)
        if self._search is not None:
            self._search.on_trial_result(trial.trial_id, report.metrics)
        return decision

    def _check_metric(self, trial: Trial, report: Report, metric: str) -> None:
        if report.is_partial or has_metric(report.metrics, metric):
            return
        raise ConfigError(
            f"{trial.trial_id} reported no {metric!r}, which TuneConfig(metric=...) names. "
            f"{explain_unknown(metric, all_names(report.metrics))}"
        )

    def _take_end(self, trial: Trial, end: End) -> None:
        was_stopping = trial.state is TrialState.STOPPING
        self._leave_out(end.lost_nodes)
        if end.is_cut_off and not was_stopping:
            self._slots.give_back(trial.trial_id)
            self._change(trial, TrialEvent.INTERRUPTED)
            self._is_starved = False
            self._show(f"{trial.trial_id} is to go on: {end.reason.partition('. ')[0]}")
            if not end.lost_nodes:
                self._cut_off = f"{trial.trial_id} was stopped for the end of its job"
            return
        if end.failed and not was_stopping:
            self._fail(trial, end.reason)
            return
        if self._is_interrupted and end.was_stopped:
            self._change(trial, TrialEvent.INTERRUPTED)
        else:
            reason = trial.reason if was_stopping else end.reason
            self._change(trial, TrialEvent.ENDED, reason=reason)
            self._note_end(trial, was_stopped=was_stopping)
        self._slots.give_back(trial.trial_id)
        self._show(f"{trial.trial_id} {self._describe_end(trial)}")

    def _leave_out(self, nodes: Mapping[str, str]) -> None:
        """Begin no more trials on lost nodes."""
        for node, reason in nodes.items():
            if self._slots.leave_out(node, reason):
                self._ledger.append("node-left-out", node=node, reason=reason)
                self._show(f"node {node} is left out: {reason}")

    def _describe_end(self, trial: Trial) -> str:
        if trial.state is TrialState.PENDING:
            return "stopped, and can be resumed"
        ended = "is finished" if not trial.reason else trial.reason.splitlines()[0]
        shown = {k: v for k, v in trial.metrics.items() if k not in ("trial_id", "time_total_s")}
        return f"{ended}: {_describe(shown)}" if shown else ended

    def _fail(self, trial: Trial, reason: str) -> None:
        self._slots.give_back(trial.trial_id)
        self._change(trial, TrialEvent.FAILED, reason=reason)
        self._note_end(trial, was_stopped=False)
        first = (reason.splitlines() or ["it failed"])[0]
        self._show(f"{trial.trial_id} failed: {first}")
        if self._rules.fail_fast and not self.reason:
            if self._rules.fail_fast == "raise":
                self._error = TrainingFailedError(f"{trial.trial_id}: {reason}")
            self._finish_early(f"{trial.trial_id} failed, and FailureConfig(fail_fast=...) is set")

    def _note_end(self, trial: Trial, *, was_stopped: bool) -> None:
        """Tell what learns from trials that one has ended."""
        if not was_stopped and trial.state is TrialState.TERMINATED:
            self._scheduler.on_complete(trial.trial_id, trial.metrics)
        if self._search is not None:
            has_failed = trial.state is TrialState.ERROR
            self._search.on_trial_complete(
                trial.trial_id, None if has_failed else trial.metrics, has_failed
            )

    def _stop(self, trial: Trial, reason: str) -> None:
        trial.stopped_after = trial.reports
        self._change(trial, TrialEvent.STOP, reason=reason)
        self._ask_to_stop(trial)

    def _ask_to_stop(self, trial: Trial) -> None:
        self._stopping_since[trial.trial_id] = self._clock()
        self._runner.stop(trial)

    def _is_late(self, trial: Trial) -> bool:
        since = self._stopping_since.get(trial.trial_id, math.inf)
        if self._clock() - since < self._rules.stop_patience_s:
            return False
        self._stopping_since[trial.trial_id] = self._clock()
        return True

    def _finish_early(self, reason: str) -> None:
        """Begin no more trials, and stop those that are at work for good."""
        self.reason = reason
        self._show(f"{reason}: stopping {len(self._at_work())} trials")
        for trial in self._at_work():
            if trial.state is TrialState.RUNNING:
                self._stop(trial, f"stopped: {reason}")

    def _interrupt(self) -> None:
        """Stop all trials so that a restored sweep resumes them, and wait for their end."""
        self._is_interrupted = True
        self.reason = self.reason or "interrupted"
        at_work = self._at_work()
        if at_work:
            self._show(f"stopping {len(at_work)} trials; Ctrl-C again leaves them running")
        for trial in at_work:
            if trial.state is TrialState.RUNNING:
                self._ask_to_stop(trial)
        # Each is ended when its patience is over, and that is waited for no longer than twice.
        give_up_at = self._clock() + 2 * self._rules.stop_patience_s
        while self._at_work() and self._clock() < give_up_at:
            self._step()
            self._sleep(_POLL_S)

    def _change(self, trial: Trial, event: TrialEvent, **details: Any) -> None:
        """Write an event down, then let it count."""
        reported = {"reports": trial.reports, "metrics": dict(trial.metrics)}
        self._ledger.append(NAME_OF[event], trial=trial.trial_id, **reported, **details)
        trial.apply(event)
        trial.reason = details.get("reason", "")
        if trial.state not in _AT_WORK:
            self._stopping_since.pop(trial.trial_id, None)


def _describe(values: Mapping[str, Any]) -> str:
    return format_metrics(values, most=4)
