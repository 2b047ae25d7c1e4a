"""`MetricCheck`: whether trials report what their sweep compares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hpctrain.errors import ConfigError
from hpctrain.metric_names import explain_unknown, flatten, has_metric
from hpctrain.tune.runner import End, Report
from hpctrain.tune.trial import Trial, TrialState

_AT_WORK = (TrialState.RUNNING, TrialState.PAUSING)


_NEEDS_IT = "The first report of each trial needs it: "


class UnreportedMetricError(ConfigError):
    """That no trial of a sweep has reported what it compares, and one should have."""


def is_unreported(reason: str) -> bool:
    """Return whether that is why a trial has failed. Pure."""
    return _NEEDS_IT in reason


class MetricCheck:
    """Knows which trials have reported the metrics of a sweep, and refuses those that do not.

    A trial is refused after a first report without one of them, and at an end without a report of
    them. Where no trial has reported them yet all would be, and the sweep ends.

    Parameters
    ----------
    metrics
        What has to be reported, and what names it.
    """

    def __init__(self, metrics: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._having: set[str] = set()
        self._refused: dict[str, str] = {}

    def recall(
        self,
        trials: Mapping[str, Trial],
        histories: Mapping[str, Sequence[Report]],
        *,
        unjudged: Collection[str],
    ) -> None:
        """Note what trials reported before their sweep was restored. Not collective.

        Those that a tuner left at work are refused as they would have been. One that it has
        interrupted may have been mended, and goes on.

        Parameters
        ----------
        unjudged
            Names of trials without a report, as far as their last tuner had written down.
        """
        for trial_id, reports in histories.items():
            trial = trials[trial_id]
            # The ledger's count, too: a person may have removed the directory of the trial.
            known = [trial.metrics] if trial.reports else []
            known += [report.metrics for report in reports]
            if not all(map(self.lacks, known)):
                self._having.add(trial_id)
            elif (
                reports
                and trial_id in unjudged
                and trial.state in _AT_WORK
                and self.refuses(reports[0])
            ):
                self._refused[trial_id] = self._explain_report(trial, reports[0])

    def forget(self, trial: Trial, *, anew: bool) -> None:
        """Note that a trial that failed runs again. Not collective.

        Parameters
        ----------
        anew
            Whether from its beginning.
        """
        self._refused.pop(trial.trial_id, None)
        if anew:
            self._having.discard(trial.trial_id)

    def lacks(self, metrics: Mapping[str, object]) -> bool:
        """Return whether metrics lack one of those that have to be reported. Pure."""
        return self._find_lack(metrics) is not None

    def refuses(self, report: Report) -> bool:
        """Return whether a trial is to fail after this first report. Pure."""
        return not report.is_partial and self.lacks(report.metrics)

    def has_refused(self, trial: Trial) -> bool:
        """Return whether a trial is to fail once its run has stopped. Not collective."""
        return trial.trial_id in self._refused

    def why_refused(self, trial: Trial) -> str:
        """Return why a trial is to fail; empty if it is not. Not collective."""
        return self._refused.get(trial.trial_id, "")

    def note(self, trial: Trial, report: Report, *, is_first: bool) -> bool:
        """Note a report; return whether its trial is to stop, and to fail. Not collective.

        Raises
        ------
        UnreportedMetricError
            If no other trial has reported the metrics either.
        """
        if not self.lacks(report.metrics):
            self._having.add(trial.trial_id)
        if not is_first or not self.refuses(report):
            return False
        why = self._refused[trial.trial_id] = self._explain_report(trial, report)
        self._raise_if_for_all(why)
        return True

    def explain_end(self, trial: Trial, end: End) -> str:
        """Return why a trial has failed whose run has not; empty if it has not. Not collective."""
        if end.failed or end.is_for_good:
            return ""
        if self.has_refused(trial):
            return self._refused[trial.trial_id]
        lack = self._find_lack({})
        if lack is None or end.was_stopped or trial.trial_id in self._having:
            return ""
        if not trial.reports:
            return self._explain(trial, lack, f"finished without a report, and so without {lack!r}")
        lack = self._find_lack(trial.metrics) or lack
        return self._explain(trial, lack, f"finished without a report of {lack!r}")

    def check_end(self, why: str) -> None:
        """End the sweep after a trial that has failed by `explain_end`, if all would.

        Not collective.

        Raises
        ------
        UnreportedMetricError
            If `why` is not empty, and no trial has reported all metrics so far.
        """
        if why:
            self._raise_if_for_all(why)

    def _raise_if_for_all(self, why: str) -> None:
        if not self._having:
            raise UnreportedMetricError(f"{why} No trial has reported it so far.")

    def _find_lack(self, metrics: Mapping[str, object]) -> str | None:
        return next((name for name in self._metrics if not has_metric(metrics, name)), None)

    def _explain_report(self, trial: Trial, report: Report) -> str:
        lack = self._find_lack(report.metrics)
        assert lack is not None
        return self._explain(trial, lack, f"reported no {lack!r}")

    def _explain(self, trial: Trial, metric: str, what: str) -> str:
        known = f" {explain_unknown(metric, flatten(trial.metrics))}" if trial.reports else ""
        return (
            f"{trial.trial_id} {what}, which {self._metrics[metric]} names.{known} "
            f"{_NEEDS_IT}hpctrain.report({{{metric!r}: None}}) where it is not measured yet."
        )
