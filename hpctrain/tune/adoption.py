"""What a scheduler and a search algorithm learn of a sweep whose tuner has ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpctrain.tune.learners import Learners
from hpctrain.tune.runner import Report, TrialRunner
from hpctrain.tune.schedulers.scheduler import Exploit, TrialScheduler
from hpctrain.tune.trial import Transfer, Trial, TrialEvent, TrialState

_CONTINUE = TrialScheduler.CONTINUE

# Time, trial, and what comes first of the same time and trial.
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
    """All reports, by name of the trial."""


def replay(
    trials: Mapping[str, Trial],
    runner: TrialRunner,
    learners: Learners,
    *,
    refuses: Callable[[Report], bool] = lambda report: False,
) -> Replayed:
    """Tell of all reports, transfers and ends in their order in time, and note the last reports.

    Not collective.

    Parameters
    ----------
    refuses
        Returns whether a trial fails after a first report: what learns is not sent it.
    """
    scheduler = learners.scheduler
    histories = {}
    for trial_id, trial in trials.items():
        learners.note_restored(trial)
        histories[trial_id] = list(runner.history(trial))
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
            is_refused = what is reports[0] and refuses(what)
            if trial_id not in stops and not is_refused and _was_noted(trial, what):
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

    A run begins no report before the tuner that runs it has decided on the last one: one that was
    interrupted had leave to go on after all reports but its last. The scheduler may say otherwise
    now: the clocks of nodes differ, and the tuner saw reports in another order than that in time.
    """
    return trial.state is not TrialState.PENDING or report is reports[-1]


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
    begun = 0.0
    for trial_id, trial in trials.items():
        reports = histories[trial_id]
        # One without a report has not ended before those that were made before it began.
        begun = max(begun, reports[0].time) if reports else begun
        for report in reports:
            yield (report.time, trial_id, report.number), report
        coming = () if trial.transfer is None else (trial.transfer,)
        for transfer in (*(origin.transfer for origin in trial.origins), *coming):
            yield (transfer.time, trial_id, math.inf), transfer
        if trial.state.is_final:
            yield (reports[-1].time if reports else begun, trial_id, math.inf), None
