"""All reports of all trials as the rows of one table, read trial by trial."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.log import log
from hpctrain.metric_names import flatten
from hpctrain.rundir.ledger import is_event
from hpctrain.rundir.metrics import add_validated, explain_cut, is_report, latest_reports
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import scan_lines
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.tune.columns import Column, Kind, convert, name_columns
from hpctrain.tune.plain import readable
from hpctrain.tune.trial import Trial

_FIXED: Mapping[str, Kind] = {
    "trial_id": Kind.TEXT,
    "state": Kind.TEXT,
    "training_iteration": Kind.INTEGER,
    "time": Kind.NUMBER,
    "attempt": Kind.INTEGER,
}
_CELLS_OF_A_BATCH = 1_000_000


@dataclass(frozen=True, kw_only=True)
class TableTrial:
    """A trial, and where its reports are."""

    trial: Trial
    run: Path
    """Its run directory."""


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """The columns of the table, and what its rows are read from."""

    trials: Sequence[TableTrial]
    columns: Mapping[str, Kind]
    """Type of each column, by its name, in order."""
    names: tuple[Mapping[str, str], Mapping[str, str]]
    """Columns of metrics and of values of the configuration, by their names."""
    reports: Sequence[int]
    """Of each trial, the last report that there was when the columns were found."""

    def batches(self) -> Iterator[dict[str, list[Any]]]:
        """Yield the rows, some thousands at a time: the values of each column.

        Not collective. Reports that are made meanwhile are left out.
        """
        batch: dict[str, list[Any]] = {name: [] for name in self.columns}
        rows = 0
        for at, last in zip(self.trials, self.reports, strict=True):
            rows += self._add(batch, at, last)
            if rows * len(batch) >= _CELLS_OF_A_BATCH:
                yield batch
                batch, rows = {name: [] for name in self.columns}, 0
        if rows:
            yield batch

    def _add(self, batch: Mapping[str, list[Any]], at: TableTrial, last: int) -> int:
        of_metrics, of_config = self.names
        found, _ = read_trial_reports(RunPaths(at.run), at.trial)
        # A trial that has none is in the table, too.
        reports = [report for report in found if report["report"] <= last] or [_NO_REPORT]
        fixed = {"trial_id": at.trial.trial_id, "state": at.trial.state.value}
        fixed.update((of_config[name], value) for name, value in _flat_config(at.trial).items())
        constant = {
            name: convert(fixed[name], kind) for name, kind in self.columns.items() if name in fixed
        }
        num_lost = 0
        for report in reports:
            row: dict[str, Any] = {
                "training_iteration": report["report"],
                "time": report["time"],
                "attempt": report["attempt"],
            }
            for name, value in flatten(report["metrics"]).items():
                column = of_metrics.get(name)
                if column is not None:
                    row[column] = convert(value, self.columns[column])
                num_lost += value is not None and (column is None or row[column] is None)
            for name, values in batch.items():
                values.append(constant[name] if name in constant else row.get(name))
        if num_lost:
            # Its attempt has resumed between the two readings.
            log(
                f"warning: {at.trial.trial_id} has made reports again meanwhile, and {num_lost} of "
                f"their values are left out. Write the table again."
            )
        return len(reports)


def make_table(trials: Sequence[TableTrial]) -> ReportTable:
    """Return the table of trials. Not collective. Reads all reports, and keeps none.

    A report that cannot be read is left out, with a warning.
    """
    metrics: dict[str, Column] = {}
    config: dict[str, Column] = {}
    lasts = []
    for at in trials:
        paths = RunPaths(at.run)
        reports, damage = read_trial_reports(paths, at.trial)
        lasts.append(reports[-1]["report"] if reports else 0)
        for what in damage:
            log(f"warning: {at.trial.trial_id}: {what}")
        for report in reports:
            _see(metrics, flatten(report["metrics"]))
        _see(config, _flat_config(at.trial))
    names = name_columns(metrics, config, _FIXED)
    of_metrics, of_config = names
    return ReportTable(
        trials=trials,
        columns={
            **_FIXED,
            **{of_metrics[name]: column.kind for name, column in metrics.items()},
            **{of_config[name]: column.kind for name, column in config.items()},
        },
        names=names,
        reports=lasts,
    )


def _see(columns: dict[str, Column], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if (column := columns.get(name)) is None:
            column = columns[name] = Column()
        column.see(value)


def _flat_config(trial: Trial) -> dict[str, Any]:
    # As it is in the ledger, where what JSON cannot hold is text, keys included.
    return flatten(json.loads(json.dumps(readable(trial.config))))


def read_trial_reports(paths: RunPaths, trial: Trial) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the reports of a trial that count, and what is lost of them, each as a sentence.

    Not collective. Metrics of validations are among those of their reports.
    """
    found: list[list[dict[str, Any]]] = []
    damage: list[str] = []
    status: RunStatus | None = None
    try:
        # First: a trial that goes on meanwhile has more reports than it says.
        status = read_status(paths)
    except (HpctrainError, OSError) as error:
        damage.append(str(error))
    has_no_status = status is None and not damage
    for path, is_valid in ((paths.metrics, is_report), (paths.ledger, is_event)):
        try:
            lines = scan_lines(path, is_valid)
        except (HpctrainError, OSError) as error:
            damage.append(str(error))
            found.append([])
            continue
        damage += [f"{path}: {what}" for what in lines.damage]
        found.append(lines.values)
    reports = latest_reports(found[0])
    add_validated(reports, found[1])
    last = reports[-1]["report"] if reports else 0
    if status is not None and (cut := explain_cut(status, last=last)):
        damage.append(f"{paths.metrics} is damaged: {cut}.")
    elif has_no_status and trial.reports and not last:
        damage.append(
            f"{paths.root} has no reports any more, and the sweep has seen {trial.reports}."
        )
    return reports, damage


_NO_REPORT: dict[str, Any] = {"report": 0, "time": None, "attempt": None, "metrics": {}}
