"""`Sweep`: the loop that gives trials slots, reads their reports and decides which go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from hpctrain.errors import (
    HpctrainError,
    LaunchError,
    RunStoppedError,
    SupersededError,
    TrainingFailedError,
)
from hpctrain.tune.adoption import replay, settle
from hpctrain.tune.decisions import Decisions
from hpctrain.tune.failures import describe_failure, explain_no_progress
from hpctrain.tune.interruptions import Interruptions
from hpctrain.tune.learners import Learners
from hpctrain.tune.ledger import SweepLedger
from hpctrain.tune.metric_check import MetricCheck
from hpctrain.tune.person_stops import REASON
from hpctrain.tune.queue import Queue
from hpctrain.tune.runner import End, Report, TrialRunner
from hpctrain.tune.schedulers.scheduler import TrialScheduler
from hpctrain.tune.search.searcher import SearchAlgorithm
from hpctrain.tune.slots import TrialSlots
from hpctrain.tune.source import ConfigSource
from hpctrain.tune.starts import Starts
from hpctrain.tune.stops import POLL_S, Stops
from hpctrain.tune.sweep_lines import describe_end, explain_end_of_all, explain_silence
from hpctrain.tune.sweep_rules import SweepRules
from hpctrain.tune.transfers import Transfers
from hpctrain.tune.trial import Trial, TrialEvent, TrialState
from hpctrain.tune.trial_progress import note_job_end
from hpctrain.tune.trials import Trials

_NO_INTERRUPTIONS = Interruptions()


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
    interruptions
        What may stop it from outside.
    clock
        Of the time that passes.
    """

    def __init__(
        self,
        *,
        source: ConfigSource,
        scheduler: TrialScheduler,
        search: SearchAlgorithm | None,
        runner: TrialRunner,
        slots: TrialSlots,
        ledger: SweepLedger,
        rules: SweepRules,
        show: Callable[[str], None] = lambda line: None,
        interruptions: Interruptions = _NO_INTERRUPTIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reason = ""
        """Why no more trials begin; empty if there is no reason but their number."""
        self._trials = Trials(ledger)
        self._learners = Learners(scheduler, search, source.propose_again)
        self._stops = Stops(runner, patience_s=rules.stop_patience_s, clock=clock)
        self._transfers = Transfers(self._trials, runner, self._stops, show)
        self._queue = Queue(
            self._trials,
            source,
            slots,
            learners=self._learners,
            transfers=self._transfers,
            need_of=runner.need_of,
            fail=self._fail,
            follow_orders=self._follow_orders,
        )
        self._decisions = Decisions(
            self._stops, self._transfers, change=self._change, end=self._end, show=show
        )
        self._starts = Starts(
            self._trials,
            self._queue,
            runner,
            slots,
            change=self._change,
            fail=self._fail,
            show=show,
        )
        self._runner, self._slots, self._metrics = runner, slots, MetricCheck(rules.metrics)
        self._rules, self._show, self._clock = rules, show, clock
        self._interruptions, self._cut_off = interruptions, ""
        self._error: HpctrainError | None = None
        self._has_ended, self._has_reports, self._is_interrupted = False, False, False
        scheduler.set_population(self._queue)

    @property
    def trials(self) -> Mapping[str, Trial]:
        """The trials by name, in the order in which they were made."""
        return self._trials.by_id

    @property
    def at_work(self) -> list[Trial]:
        """Those with a run that goes on."""
        return self._trials.at_work

    def run(self) -> None:
        """Run all trials. Not collective.

        Raises
        ------
        HpctrainError
            If the first trial cannot be started, nodes do not see its files, no trial reports the
            metric, or one failed and `fail_fast` is ``"raise"``; all others have been stopped then.
        RunStoppedError
            If the job of this process is about to end, or a person has stopped the sweep, once all
            trials have stopped.
        SupersededError
            If another process runs the sweep; the trials are left to it.
        KeyboardInterrupt
            After Ctrl-C, once all trials have stopped, if the rules say so.
        """
        deadline = self._clock() + self._rules.time_budget_s - self._rules.spent_s
        try:
            if self._rules.spent_s >= self._rules.time_budget_s:
                # Nothing begins only to be stopped.
                self._spend_budget()
            while self._step():
                self._cut_off = self._cut_off or self._interruptions.why_job_ends()
                if why := self._cut_off or self._interruptions.why_leave():
                    self.reason = why
                    raise RunStoppedError(f"the sweep stopped because {why}.")
                if self._clock() >= deadline and not self.reason:
                    self._spend_budget()
                if not self._has_ended:
                    self._runner.wait(POLL_S)
        except SupersededError:
            # The trials are of another tuner now.
            raise
        except KeyboardInterrupt:
            if self._rules.ends_at_interrupt:
                self._interrupt()
            raise
        except BaseException:
            self._interrupt()
            raise
        if self._error is not None:
            raise self._error

    def adopt(self, trials: Mapping[str, Trial], *, was_in_job: bool = False) -> None:
        """Take over the trials of a sweep whose tuner has ended. Not collective.

        Runs that go on are attached to. What learns from reports is sent them again, in their order
        in time.

        Parameters
        ----------
        trials
            As the ledger has them.
        was_in_job
            Whether that tuner was in a job that is over: so ended the runs that are gone, but for
            those that were asked to stop.
        """
        self._trials.by_id.update(trials)
        unjudged = {name for name, trial in trials.items() if not trial.reports}
        replayed = replay(
            self.trials,
            self._runner,
            self._learners,
            refuses=self._metrics.refuses,
            lacks=self._metrics.lacks,
        )
        self._metrics.recall(self.trials, replayed.histories, unjudged=unjudged)
        self._transfers.hold_all()
        self._runner.watch(self._trials.at_work)
        for trial in self._trials.at_work:
            name = trial.trial_id
            decided = replayed.decisions.get(name, ""), replayed.stops.get(name)
            self._take_over(trial, *decided, was_in_job=was_in_job)
        settle(self._trials.waiting, replayed, change=self._change, end=self._end)
        for exploit in replayed.exploits:
            self._transfers.order(exploit)
        self._follow_orders()

    def _take_over(
        self, trial: Trial, decision: str, after: int | None, *, was_in_job: bool
    ) -> None:
        # Before it is looked for: what is gone is written down as stopped then.
        is_job_end = was_in_job and not self._runner.was_asked_to_stop(trial)
        if not self._runner.attach(trial):
            if trial.state is TrialState.RUNNING:
                self._decisions.write(trial, decision, after)
            if trial.state is TrialState.STOPPING:
                self._end(trial, trial.reason, was_stopped=True)
            else:
                self._set_aside(trial, is_job_end=is_job_end)
            return
        self._starts.keep(trial)
        if trial.state is not TrialState.RUNNING or self._metrics.has_refused(trial):
            self._stops.ask(trial)
        else:
            self._decisions.apply(trial, decision, after)

    def retry(self, trial: Trial, *, anew: bool = False) -> None:
        """Let a trial that failed run again. Not collective.

        Parameters
        ----------
        anew
            Whether its run was moved aside.
        """
        self._metrics.forget(trial, anew=anew)
        self._change(trial, TrialEvent.RETRY, anew=anew)
        if anew:
            self._runner.forget(trial)
            trial.begin_anew()
        self._learners.note_retry(trial)

    def _step(self) -> bool:
        """Do what is to be done now; return whether there is more to come."""
        self._interruptions.check_hold()
        self._end_stopped()
        if not self.reason:
            self._starts.start_what_fits()
            if not self._trials.at_work:
                self._cut_off = self._cut_off or self._queue.why_held_back
        self._has_ended = False
        for trial in self._trials.at_work:
            look = self._runner.look(trial)
            for report in look.reports:
                self._take_report(trial, report)
            is_ending = self._is_interrupted or self._metrics.has_refused(trial)
            if look.reports and trial.state is TrialState.RUNNING and not is_ending:
                # Others stop with it.
                self._runner.let_go_on(trial, look.reports[-1])
            if look.end is not None:
                # The next one may begin in its slot at once.
                self._has_ended = True
                self._take_end(trial, look.end)
        self._stops.enforce(self._trials.at_work)
        is_waited_for = self._trials.waiting or not self._queue.is_empty
        if self._trials.at_work or (not self.reason and is_waited_for):
            return True
        self.reason = self.reason or self._queue.why_empty
        return False

    def _end_stopped(self) -> None:
        """End the trials that a person has stopped."""
        for trial_id in self._interruptions.find_stopped():
            if (trial := self.trials.get(trial_id)) is not None:
                self._decisions.stop_for_good(trial, REASON)

    def _take_report(self, trial: Trial, report: Report) -> None:
        is_old = report.number <= trial.reports and report.attempt <= trial.attempt
        if is_old or self._metrics.has_refused(trial):
            return
        self._has_reports = True
        is_at_work = trial.state in (TrialState.RUNNING, TrialState.PAUSING)
        is_first = trial.reports == 0 and is_at_work and not self._is_interrupted
        is_known = trial.take(report.number, report.metrics, attempt=report.attempt)
        if self._metrics.note(trial, report, is_first=is_first):
            self._stops.ask(trial)
            return
        if is_known:
            # The scheduler and the search have had a report of this number.
            return
        if not is_at_work or trial.transfer is not None or self._is_interrupted:
            return
        decision = self._learners.note_report(trial, report)
        self._follow_orders()
        self._decisions.apply(trial, decision)

    def _follow_orders(self) -> None:
        """Do what the scheduler has decided on other trials than the one that has reported."""
        for exploit in self._learners.take_exploits():
            if not self.reason:
                self._transfers.order(exploit)
        for trial_id in self._learners.take_stops():
            trial = self.trials[trial_id]
            reason = f"stopped by the scheduler after report {trial.reports}"
            self._decisions.stop_for_good(trial, reason)

    def _take_end(self, trial: Trial, end: End) -> None:
        is_to_end = (was_stopping := trial.state is TrialState.STOPPING) or end.is_for_good
        self._starts.leave_out(end.lost_nodes)
        # Those of an earlier job say nothing of the nodes of this one.
        if end.is_for_all and not is_to_end and not self._has_reports:
            self._set_aside(trial)
            if self._is_interrupted:
                return
            raise LaunchError(explain_end_of_all(trial, end.reason))
        if (end.is_cut_off or end.is_orphaned) and not is_to_end:
            self._set_aside(trial, is_job_end=end.is_cut_off and end.has_run)
            if not trial.state.is_final:
                self._show(f"{trial.trial_id} is to go on: {end.reason.partition('. ')[0]}")
            if end.is_cut_off and not end.lost_nodes:
                self._cut_off = f"{trial.trial_id} was stopped for the end of its job"
            return
        lack = self._metrics.explain_end(trial, end)
        if (end.failed or lack) and not was_stopping:
            self._fail(trial, lack or end.reason)
            self._metrics.check_end("" if self._is_interrupted else lack)
            return
        is_pausing = trial.state is TrialState.PAUSING
        if end.was_stopped and not is_to_end and (is_pausing or self._is_interrupted):
            self._set_aside(trial, is_job_end=bool(self._cut_off) and end.has_run)
            if trial.state.is_final:
                return
        else:
            reason = trial.reason if was_stopping else end.reason or explain_silence(trial)
            self._end(trial, reason, was_stopped=was_stopping)
        self._slots.give_back(trial.trial_id)
        self._show(f"{trial.trial_id} {describe_end(trial)}")

    def _set_aside(self, trial: Trial, *, is_job_end: bool = False) -> None:
        """Let a trial whose run is gone go on later, unless it made no progress in many jobs."""
        is_pausing = trial.state is TrialState.PAUSING
        is_counted = is_job_end and not is_pausing
        counted = note_job_end(trial, self._runner.find_saved) if is_counted else {}
        if why := self._metrics.why_refused(trial) or explain_no_progress(trial):
            self._fail(trial, why, **counted)
            return
        self._slots.give_back(trial.trial_id)
        event = TrialEvent.PAUSED if is_pausing else TrialEvent.INTERRUPTED
        self._change(trial, event, **counted)

    def _fail(self, trial: Trial, reason: str, **details: int) -> None:
        self._slots.give_back(trial.trial_id)
        self._change(trial, TrialEvent.FAILED, reason=reason, **details)
        self._note_end(trial, was_stopped=False)
        self._show(describe_failure(trial, self.trials.values()))
        if self._rules.fail_fast and not self.reason:
            if self._rules.fail_fast == "raise":
                self._error = TrainingFailedError(f"{trial.trial_id}: {reason}")
            self._finish_early(f"{trial.trial_id} failed, and FailureConfig(fail_fast=...) is set")

    def _end(self, trial: Trial, reason: str, *, was_stopped: bool) -> None:
        self._change(trial, TrialEvent.ENDED, reason=reason)
        self._note_end(trial, was_stopped=was_stopped)

    def _note_end(self, trial: Trial, *, was_stopped: bool) -> None:
        self._runner.release(trial)
        if self._is_interrupted:
            # They are sent it when the sweep is restored; one of them may have raised an error.
            return
        self._learners.note_end(trial, was_stopped=was_stopped)
        self._follow_orders()

    def _spend_budget(self) -> None:
        self._finish_early(f"time_budget_s={self._rules.time_budget_s:g} is over")

    def _finish_early(self, reason: str) -> None:
        """Begin no more trials, and stop those that have begun for good."""
        self.reason, self._queue.is_closed = reason, True
        self._show(f"{reason}: stopping {len(self._trials.at_work)} trials")
        for trial in self._trials.at_work:
            self._decisions.stop_for_good(trial, f"stopped: {reason}")
        for trial in self._trials.waiting:
            # The end of one may have ended others, which the scheduler let wait for it.
            if trial.has_begun and not trial.state.is_final:
                self._end(trial, f"stopped: {reason}", was_stopped=True)

    def _interrupt(self) -> None:
        """Stop all trials so that a restored sweep resumes them, and wait for their end."""
        self._is_interrupted = True
        hint = "" if self.reason else "; Ctrl-C again leaves them running"
        self.reason, self._queue.is_closed = self.reason or "interrupted", True
        if at_work := self._trials.at_work:
            self._show(f"stopping {len(at_work)} trials{hint}")
        times = self._interruptions.stop_times(self._rules.stop_patience_s)
        self._stops.leave(at_work, times, now=self._interruptions.is_urgent())
        self._stops.wait_for_ends(lambda: self._trials.at_work, self._step)

    def _change(self, trial: Trial, event: TrialEvent, **details: Any) -> None:
        self._trials.change(trial, event, **details)
        if trial not in self._trials.at_work:
            self._stops.forget(trial)
