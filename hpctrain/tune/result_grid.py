"""`ResultGrid`: what came out of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.checks import check_choice
from hpctrain.errors import ConfigError, NoBestTrialError, RunStoppedError, TrainingFailedError
from hpctrain.log import log
from hpctrain.metric_names import (
    as_float,
    explain_unknown,
    find_float,
    find_number,
    flatten,
    has_metric,
)
from hpctrain.path_string import expand_home, local_filesystem
from hpctrain.result import Result
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status
from hpctrain.tune.attempt_clock import AttemptClock
from hpctrain.tune.export import export_reports
from hpctrain.tune.failures import explain_no_progress
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.report_table import TableTrial
from hpctrain.tune.trial import Trial, TrialState
from hpctrain.tune.trial_progress import ADDED, make_report

if TYPE_CHECKING:
    import pandas
    import pyarrow.fs

_MOST_NAMED = 4
SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")


class ResultGrid:
    """The results of a sweep's trials, in the order in which they were made.

    Parameters
    ----------
    trials
        The trials.
    results
        Their results.
    path
        Directory of the sweep.
    metric, mode
        Those of the sweep: of its TuneConfig, or else of its scheduler or search algorithm.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        results: Sequence[Result],
        *,
        path: Path,
        metric: str | None = None,
        mode: str | None = None,
    ) -> None:
        self._trials, self._results = list(trials), list(results)
        self._metric, self._mode = metric, mode
        self.experiment_path = str(path)
        """Directory of the sweep, for ``Tuner.restore()``."""

    def __len__(self) -> int:
        """Return how many trials there are."""
        return len(self._results)

    def __getitem__(self, index: int) -> Result:
        """Return the result of a trial."""
        return self._results[index]

    def __iter__(self) -> Iterator[Result]:
        """Yield the results."""
        return iter(self._results)

    def __repr__(self) -> str:
        """Return a line for each trial."""
        lines = "".join(f"\n  {result!r}," for result in self)
        return f"ResultGrid<[{lines}\n]>" if lines else "ResultGrid<[]>"

    @property
    def filesystem(self) -> pyarrow.fs.LocalFileSystem:
        """Arrow's filesystem of `experiment_path`, always the local one. Needs pyarrow."""
        return local_filesystem()

    @property
    def errors(self) -> list[Exception]:
        """The errors of the trials that failed."""
        return [
            result.error
            for trial, result in zip(self._trials, self, strict=True)
            if trial.state is TrialState.ERROR and result.error is not None
        ]

    @property
    def num_errors(self) -> int:
        """How many trials failed."""
        return sum(trial.state is TrialState.ERROR for trial in self._trials)

    @property
    def num_terminated(self) -> int:
        """How many trials finished or were stopped."""
        return sum(trial.state is TrialState.TERMINATED for trial in self._trials)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """Return the result of the best trial. Not collective.

        Parameters
        ----------
        metric, mode
            None: those of the sweep.
        scope
            What of a trial is compared: its ``last`` value, the best of ``all``, or the average of
            all (``avg``) or of the last ones (``last-5-avg``, ``last-10-avg``).
        filter_nan_and_inf
            Whether a trial whose value is not finite is left out.

        Raises
        ------
        ConfigError
            If there is no metric or mode.
        NoBestTrialError
            If no trial has a value of the metric.
        """
        check_choice("get_best_result(scope=...)", scope, SCOPES)
        metric, mode = metric or self._metric, mode or self._mode
        if len(self) == 1:
            # As in Ray Tune: there is nothing to compare.
            if why := self._explain_silence():
                log(f"warning: {why}")
            return self[0]
        if metric is None or mode is None:
            raise ConfigError(
                "get_best_result() needs a metric and a mode: get_best_result('loss', 'min'), or "
                "TuneConfig(metric='loss', mode='min')."
            )
        check_choice("get_best_result(mode=...)", mode, ("min", "max"))
        scores = []
        for index in range(len(self)):
            score = score_of(self._compared(index, metric), metric, mode, scope)
            if score is None or (filter_nan_and_inf and not math.isfinite(score)):
                continue
            scores.append((_sortable(score, mode), index))
        if not scores:
            raise NoBestTrialError(
                f"no trial in {self.experiment_path} has a value of {metric!r} to compare. "
                + (
                    self._explain_silence()
                    or self._explain_failures()
                    or self._explain_values(metric)
                )
            )
        return self[min(scores)[1]]

    def _compared(self, index: int, metric: str) -> list[dict[str, Any]]:
        """Return the reports of a trial, with what Ray Tune adds to each if it is the metric."""
        result, trial = self[index], self._trials[index]
        if metric not in ADDED:
            return result.metrics_history
        clock = AttemptClock(paths=RunPaths(Path(result.path)))
        # Those of a sweep at work become more: a row is made of the same ones.
        return [dict(make_report(trial, clock, line).metrics) for line in result._reports]

    def _explain_values(self, metric: str) -> str:
        """Return why no trial has a value of a metric to compare."""
        if any(has_metric(result.metrics, metric) for result in self):
            return (
                "What was reported is NaN, infinite or no number: look at get_dataframe(). "
                "get_best_result(filter_nan_and_inf=False) leaves no trial with a number out."
            )
        return explain_unknown(
            metric, {name for result in self for name in flatten(result.metrics)}
        )

    def _explain_silence(self) -> str:
        """Return which trials have finished without a report; empty if there are none."""
        silent = [
            trial.trial_id
            for trial, result in zip(self._trials, self, strict=True)
            if trial.state is TrialState.TERMINATED and not result.metrics
        ]
        if not silent:
            return ""
        more = f" and {len(silent) - _MOST_NAMED} more" if len(silent) > _MOST_NAMED else ""
        return (
            f"{', '.join(silent[:_MOST_NAMED])}{more} ended without a report: the function has to "
            f"call hpctrain.report({{...}}), or to return a dict of metrics."
        )

    def _explain_failures(self) -> str:
        """Return why trials have failed, if none has reported anything; empty if one has."""
        if not self.errors or any(result.metrics for result in self):
            return ""
        first = next(iter(str(self.errors[0]).splitlines()), "") or type(self.errors[0]).__name__
        return (
            f"{self.num_errors} of {len(self)} failed before they reported anything: {first}   "
            f"ResultGrid.errors has them all; Tuner.restore({self.experiment_path!r}, trainable, "
            f"restart_errored=True).fit() runs them again."
        )

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pandas.DataFrame:
        """Return a row for each trial: its last report, and its configuration. Not collective.

        Parameters
        ----------
        filter_metric, filter_mode
            Take the best report by this metric in place of the last.

        Raises
        ------
        ConfigError
            If pandas is not installed, only one of both is given, or no trial has the metric.
        """
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(
                "ResultGrid.get_dataframe() needs pandas: pip install 'hpctrain[pandas]'. "
                "[result.metrics for result in grid] is the same as a list of dicts."
            ) from error
        if (filter_metric is None) != (filter_mode is None):
            raise ConfigError(
                "get_dataframe() needs filter_metric and filter_mode together, or none of them."
            )
        chosen = [len(result.metrics_history) - 1 for result in self]
        if filter_metric is not None and filter_mode is not None:
            chosen = self._find_best_reports(filter_metric, filter_mode)
        return pandas.DataFrame(
            [
                _row(trial, result, index)
                for trial, result, index in zip(self._trials, self, chosen, strict=True)
            ]
        )

    def _find_best_reports(self, metric: str, mode: str) -> list[int]:
        """Return the index of the best report of each trial; -1 if it has none with a number."""
        check_choice("get_dataframe(filter_mode=...)", mode, ("min", "max"))
        histories = [self._compared(index, metric) for index in range(len(self))]
        reports = [report for history in histories for report in history]
        if reports and not any(has_metric(report, metric) for report in reports):
            known = {name for report in reports for name in flatten(report)}
            raise ConfigError(
                f"get_dataframe(filter_metric={metric!r}): no trial has reported it. "
                f"{explain_unknown(metric, known)}"
            )
        found = []
        for history in histories:
            scored = [
                (_sortable(score, mode), index)
                for index, report in enumerate(history)
                if (score := find_float(report, metric)) is not None
            ]
            found.append(min(scored)[1] if scored else -1)
        return found

    def write_parquet(self, path: str | PathLike[str]) -> None:
        """Write a row for each report of each trial, as a Parquet file. Not collective.

        The columns are ``trial_id``, ``state``, ``training_iteration`` (number of the report, 0 for
        a trial without one), ``time`` (seconds since the epoch), ``attempt``, the metrics, and
        ``config/NAME`` of the configuration. A column whose values are not all numbers is of text,
        with JSON for what is none. Trials are read one after the other. A file that is there is
        replaced, once the new one is complete; what cannot be read is left out, with a warning.

        Parameters
        ----------
        path
            A name that ends with ``.parquet``.

        Raises
        ------
        ConfigError
            If it cannot be there, or pyarrow is not installed.
        OSError
            If it cannot be written.
        """
        if Path(path).suffix != ".parquet":
            raise ConfigError(
                f"write_parquet({str(path)!r}): a name that ends with .parquet is needed."
            )
        trials = [
            TableTrial(trial=trial, run=Path(result.path))
            for trial, result in zip(self._trials, self, strict=True)
        ]
        export_reports(trials, expand_home(path), overwrite=True)


def _row(trial: Trial, result: Result, index: int) -> dict[str, Any]:
    """Return the row of a trial with one of its reports; with none if the index is -1."""
    fixed = {
        "trial_id": trial.trial_id,
        "state": trial.state.value,
        "training_iteration": index + 1,
    }
    found = flatten(result.metrics_history[index] if index >= 0 else {})
    return {
        **fixed,
        **{f"metrics/{name}" if name in fixed else name: value for name, value in found.items()},
        **{f"config/{name}": value for name, value in flatten(trial.config).items()},
    }


def score_of(
    reports: Sequence[Mapping[str, Any]], metric: str, mode: str, scope: str
) -> float | None:
    """Return by which value a trial is compared; None if it has none. Pure.

    Examples
    --------
    >>> score_of([{"loss": 1.0}, {"loss": 3.0}], "loss", "min", "all")
    1.0
    >>> score_of([{"loss": 1.0}, {"loss": 3.0}], "loss", "min", "avg")
    2.0
    """
    values = [
        as_float(value)
        for report in reports
        if has_metric(report, metric) and (value := find_number(report, metric)) is not None
    ]
    if not values:
        return None
    if scope == "all":
        finite = [value for value in values if not math.isnan(value)]
        return (min if mode == "min" else max)(finite or values)
    last = {"last": 1, "last-5-avg": 5, "last-10-avg": 10}.get(scope, len(values))
    return sum(values[-last:]) / len(values[-last:])


def _sortable(score: float, mode: str) -> tuple[bool, float]:
    # NaN is worse than all numbers.
    return (True, 0.0) if math.isnan(score) else (False, score if mode == "min" else -score)


def make_grid(
    paths: SweepPaths,
    trials: Mapping[str, Trial],
    *,
    metric: str | None,
    mode: str | None,
) -> ResultGrid:
    """Return the results of trials, from their run directories. Not collective."""
    results = [_result_of(paths, trial) for trial in trials.values()]
    return ResultGrid(list(trials.values()), results, path=paths.root, metric=metric, mode=mode)


def _failed_by_sweep(trial: Trial, error: Exception | None) -> bool:
    """Return whether a trial failed for what its sweep has found, and its run does not know."""
    return error is None or isinstance(error, RunStoppedError) or bool(explain_no_progress(trial))


def _result_of(paths: SweepPaths, trial: Trial) -> Result:
    root = paths.run(trial.trial_id)
    if read_status(RunPaths(root)) is None:
        # It could not begin, or has not yet.
        error = TrainingFailedError(trial.reason) if trial.state is TrialState.ERROR else None
        result = Result(path=root, error=error)
    else:
        result = Result.from_path(root)
        if trial.state is TrialState.TERMINATED:
            # That the sweep has stopped it is no error, nor how it ended once it was to stop.
            result.error = None
        elif trial.state is TrialState.ERROR and _failed_by_sweep(trial, result.error):
            result.error = RunStoppedError(trial.reason)
    vars(result)["config"] = trial.config
    return result
