"""What a scheduler and a search algorithm learn of a sweep whose tuner has ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.errors import DamagedFileError
from hpctrain.log import log
from hpctrain.tune.learners import Learners
from hpctrain.tune.runner import Report, TrialRunner
from hpctrain.tune.schedulers.scheduler import Exploit, TrialScheduler
from hpctrain.tune.trial import Transfer, Trial, TrialEvent, TrialState

_CONTINUE = TrialScheduler.CONTINUE

# Time, trial, and what comes first of the same time and trial. The clock of a node may be set back:
# of one trial no report is before the last one, nor its end.
_Key = tuple[float, str, float]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a scheduler says to the last reports, which may not have had consequences."""

    decisions: Mapping[str, str]
    """By name of the trial."""
    stops: Mapping[str, int]
    """Number of the report that it decided to stop a trial after, by name; others came later."""
    exploits: tuple[Exploit, ...]
    histories: Mapping[str, Sequence[Report]]
    """Reports by name of the trial: all of them, if something learns from them."""


def replay(
    trials: Mapping[str, Trial],
    runner: TrialRunner,
    learners: Learners,
    *,
    refuses: Callable[[Report], bool] = lambda report: False,
    lacks: Callable[[Mapping[str, Any]], bool] = lambda metrics: False,
) -> Replayed:
    """Tell of all reports, transfers and ends in their order in time, and note the last reports.

    Not collective.

    Parameters
    ----------
    refuses
        Returns whether a trial fails after a first report: what learns is not sent it, nor those
        after it that lack the same.
    lacks
        Returns whether metrics lack one that trials have to report.
    """
    scheduler = learners.scheduler
    histories = {}
    for trial_id, trial in trials.items():
        learners.note_restored(trial)
        if learners.learn:
            histories[trial_id] = _read(trial, runner)
        else:
            histories[trial_id] = _read_ends(trial, runner, lacks)
    withheld = {name for name, of_trial in histories.items() if of_trial and refuses(of_trial[0])}
    moments = sorted(_moments(trials, histories), key=lambda moment: moment[0])
    transferred = max((k[0] for k, what in moments if isinstance(what, Transfer)), default=0.0)
    decisions: dict[str, str] = {}
    stops: dict[str, int] = {}
    exploits: list[Exploit] = []
    scheduler.is_replaying = True
    for (when, trial_id, _), what in moments:
        trial = trials[trial_id]
        if isinstance(what, Transfer):
            scheduler.on_exploit(Exploit(trial_id=trial_id, donor=what.donor, config=what.config))
        elif what is None:
            learners.note_end(trial, was_stopped=trial.stopped_after is not None)
        else:
            reports = histories[trial_id]
            is_last = what is reports[-1] and trial.state is TrialState.RUNNING
            # What has led to a transfer, of whichever trial, was looked at.
            scheduler.is_replaying = not (is_last and when > transferred)
            # Runs go on that are to stop as long as there is no tuner to say so.
            if not refuses(what):
                withheld.discard(trial_id)
            is_sent = trial_id not in stops and trial_id not in withheld
            if is_sent and _was_noted(trial, what):
                decision = learners.note_report(trial, what)
                decisions[trial_id] = decision if _may_count(trial, what, reports) else _CONTINUE
                if decisions[trial_id] == TrialScheduler.STOP:
                    stops[trial_id] = what.number
                taken = learners.take_exploits()
                exploits += () if scheduler.is_replaying else taken
            scheduler.is_replaying = True
            # What was reported counts, whatever the ledger noted of an attempt before.
            trial.take(what.number, what.metrics, attempt=what.attempt)
    learners.ask_again()
    scheduler.is_replaying = False
    return Replayed(decisions=decisions, stops=stops, exploits=tuple(exploits), histories=histories)


def _read(trial: Trial, runner: TrialRunner) -> list[Report]:
    """Return all reports; none of a failed trial whose files are damaged: it stops no other."""
    try:
        return list(runner.history(trial))
    except (OSError, DamagedFileError) as error:
        if trial.state is not TrialState.ERROR:
            raise
        log(f"warning: the reports of {trial.trial_id}, which has failed, are left out: {error}")
        return []


def _read_ends(
    trial: Trial, runner: TrialRunner, lacks: Callable[[Mapping[str, Any]], bool]
) -> list[Report]:
    """Return the first and the last report, and the first that lacks no metric.

    Of a trial that is finished or was stopped they are read only if the ledger does not say whether
    there is one. One that has failed may be tried again, and its reports are not new then.
    """
    if trial.state is TrialState.TERMINATED and not (trial.reports and lacks(trial.metrics)):
        return []
    reports = _read(trial, runner)
    whole = next((report for report in reports if not lacks(report.metrics)), None)
    kept = (*reports[:1], whole, *reports[-1:])
    return [report for report in reports if any(report is each for each in kept)]


def settle(
    trials: Iterable[Trial],
    replayed: Replayed,
    *,
    change: Callable[[Trial, TrialEvent], None],
    end: Callable[..., None],
) -> None:
    """Let what a scheduler says to the last reports of interrupted trials count. Not collective.

    While a sweep stops, its scheduler is sent no reports: a trial may have come to where it is to
    wait for others, or to end.

    Parameters
    ----------
    trials
        Those that wait.
    replayed
        What the scheduler says.
    change
        Writes an event of a trial down, and lets it count.
    end
        Ends a trial, given the reason.
    """
    for trial in trials:
        name = trial.trial_id
        if trial.state is not TrialState.PENDING or name not in replayed.decisions:
            continue
        if replayed.decisions[name] == TrialScheduler.PAUSE:
            change(trial, TrialEvent.PAUSED)
        elif (after := replayed.stops.get(name)) is not None:
            end(trial, f"stopped by the scheduler after report {after}", was_stopped=True)


def _may_count(trial: Trial, report: Report, reports: Sequence[Report]) -> bool:
    """Return whether what a scheduler says to a report may have had no consequence so far.

    A run begins no report before the tuner that runs it has decided on the last one: one that has
    stopped had leave to go on after all reports but its last. The scheduler may say otherwise now:
    the clocks of nodes differ, and the tuner saw reports in another order than that in time. Of a
    run that is still at work it is not known when its tuner ended.
    """
    return trial.state is TrialState.RUNNING or report is reports[-1]


def _was_noted(trial: Trial, report: Report) -> bool:
    """Return whether a report came before the trial was to stop, for good or for a transfer."""
    if trial.stopped_after is not None and report.number > trial.stopped_after:
        return False
    if trial.transfer is not None and report.time > trial.transfer.time:
        return False
    return not any(
        report.time > origin.transfer.time and report.number <= origin.report
        for origin in trial.origins
    )


def _moments(
    trials: Mapping[str, Trial], histories: Mapping[str, list[Report]]
) -> Iterator[tuple[_Key, Report | Transfer | None]]:
    next_begun: dict[str, float] = {}
    begun = math.inf
    for trial_id in reversed([*trials]):
        next_begun[trial_id] = begun
        begun = min([begun, *(report.time for report in histories[trial_id][:1])])
    for trial_id, trial in trials.items():
        last = -math.inf
        for index, report in enumerate(histories[trial_id]):
            last = max(last, report.time)
            yield (last, trial_id, index), report
        coming = () if trial.transfer is None else (trial.transfer,)
        for transfer in (*(origin.transfer for origin in trial.origins), *coming):
            last = max(last, transfer.time)
            yield (transfer.time, trial_id, math.inf), transfer
        if trial.state.is_final:
            # One without a report may have been what those after it waited for.
            ended = last if histories[trial_id] else next_begun[trial_id]
            yield (ended, trial_id, math.inf), None
