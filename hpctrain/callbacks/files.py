"""Loggers without a library: ``progress.csv`` and ``result.json``."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hpctrain.callback import RunContext
from hpctrain.callbacks.logger import LoggerCallback, encodable, missing_reports
from hpctrain.log import log
from hpctrain.metric_names import flatten
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.reading import parse_json

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint

_NUMBER = "training_iteration"


class _FileLogger(LoggerCallback):
    """Appends to a file in the run directory; repeated reports replace earlier ones."""

    _file: IO[str] | None = None

    def close(self, run_context: RunContext, state: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _reopen(self, path: Path, content: str) -> None:
        if self._file is not None:
            self._file.close()
        write_atomic(path, content.encode())
        self._file = path.open("a", newline="", encoding="utf-8")

    def _append(self, text: str) -> None:
        assert self._file is not None
        self._file.write(text)
        self._file.flush()


class CSVLoggerCallback(_FileLogger):
    """Writes ``progress.csv`` into the run directory: a row for each report.

    The columns are ``training_iteration``, which is the number of the report, ``timestamp``, and
    the metrics; a column that comes later is empty in the rows before. What is neither a number nor
    text is JSON.
    """

    _columns: tuple[str, ...] = ()

    def describe_record(self) -> str:
        """Return what it writes; see `hpctrain.UserCallback`."""
        return "progress.csv"

    def open(self, run_context: RunContext) -> None:
        """Open the file without the rows that the attempt reports again."""
        self._path = run_context.path / "progress.csv"
        header, rows = _read_table(self._path)
        kept = [row for row in rows if int(row[0]) < max(run_context.report, 1)]
        missing = [
            {**self._as_written(line["metrics"]), **_stamp(line["report"], line["time"])}
            for line in missing_reports(run_context, {int(row[0]) for row in kept})
        ]
        columns = [*dict.fromkeys([*(header or [_NUMBER, "timestamp"]), *chain(*missing)])]
        kept += [[_cell(line.get(name)) for name in columns] for line in missing]
        self._rewrite(columns, sorted(kept, key=lambda row: int(row[0])))

    def _as_written(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {encodable(name): value for name, value in flatten(metrics).items()}

    def log(
        self, run_context: RunContext, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Write a row."""
        row = {**metrics, **_stamp(run_context.report, time.time())}
        if new := [name for name in row if name not in self._columns]:
            _, rows = _read_table(self._path)
            self._rewrite([*self._columns, *new], rows)
        self._append(_to_csv([[_cell(row.get(name)) for name in self._columns]]))

    def _rewrite(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._columns = tuple(columns)
        wide = [[*row, *[""] * (len(columns) - len(row))] for row in rows]
        self._reopen(self._path, _to_csv([columns, *wide]) if rows or len(columns) > 2 else "")


class JsonLoggerCallback(_FileLogger):
    """Writes ``result.json``, one JSON object a line, and ``params.json`` into the run directory.

    An object has the metrics as they were reported, ``training_iteration``, which is the number of
    the report, and ``timestamp``.
    """

    def describe_record(self) -> str:
        """Return what it writes; see `hpctrain.UserCallback`."""
        return "result.json"

    def open(self, run_context: RunContext) -> None:
        """Open the file without the lines that the attempt reports again."""
        parameters = json.dumps(_with_text_keys(self.parameters), indent=1, default=repr)
        write_atomic(run_context.path / "params.json", parameters.encode())
        path = run_context.path / "result.json"
        *lines, _ = path.read_text().split("\n") if path.exists() else [""]
        numbered = {_number_of(line): line for line in lines}
        kept = {n: line for n, line in numbered.items() if n < max(run_context.report, 1)}
        for report in missing_reports(run_context, {int(number) for number in kept}):
            stamp = _stamp(report["report"], report["time"])
            kept[report["report"]] = json.dumps({**report["metrics"], **stamp})
        self._reopen(path, "".join(f"{kept[number]}\n" for number in sorted(kept)))

    def _as_written(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return dict(metrics)

    def log(
        self, run_context: RunContext, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Write a line."""
        self._append(json.dumps({**metrics, **_stamp(run_context.report, time.time())}) + "\n")


def _with_text_keys(value: Any) -> Any:
    """Return a value with the keys that JSON cannot hold, such as tuples, as text."""
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, (str, int, float, type(None))) else str(key): _with_text_keys(v)
            for key, v in value.items()
        }
    return [_with_text_keys(v) for v in value] if isinstance(value, (list, tuple)) else value


def _stamp(report: int, time_s: float) -> dict[str, int]:
    return {_NUMBER: report, "timestamp": int(time_s)}


def _number_of(line: str) -> float:
    value = parse_json(line)
    number = value.get(_NUMBER) if isinstance(value, dict) else None
    return number if isinstance(number, int) else float("inf")


def _read_table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return header and rows, without incomplete and foreign lines."""
    if not path.exists():
        return [], []
    with path.open(newline="", encoding="utf-8") as file:
        content = file.read()
    # A row that a kill has cut off has no end.
    complete = content[: content.rfind("\n") + 1]
    # A cell can be longer than csv's limit, which is one for the whole process.
    limit = csv.field_size_limit(sys.maxsize)
    try:
        header, *rows = [*csv.reader(io.StringIO(complete, newline=""))] or [[]]
    except csv.Error as error:
        log(f"warning: {path} is damaged, and begun anew: {error}.")
        return [], []
    finally:
        csv.field_size_limit(limit)
    if header[:1] != [_NUMBER]:
        return [], []
    return header, [row for row in rows if len(row) == len(header) and row[0].isdecimal()]


def _to_csv(rows: Sequence[Sequence[str]]) -> str:
    lines = []
    for row in rows:
        text = io.StringIO(newline="")
        # It quotes the characters of the terminator, of which a reader takes each for an end.
        csv.writer(text, lineterminator="\r\n").writerow(row)
        lines.append(text.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return encodable(value) if isinstance(value, str) else json.dumps(value)
