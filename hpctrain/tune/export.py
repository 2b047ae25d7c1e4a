"""The reports of all trials as one file: Parquet or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.errors import ConfigError
from hpctrain.rundir.files import replacing
from hpctrain.tune.columns import Kind
from hpctrain.tune.report_table import ReportTable, TableTrial, make_table

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, kw_only=True)
class ExportedReports:
    """What was written."""

    path: Path
    num_trials: int
    num_rows: int
    columns: tuple[str, ...]


def export_reports(
    trials: Sequence[TableTrial], target: str | PathLike[str], *, overwrite: bool
) -> ExportedReports:
    """Write a row for each report of each trial. Not collective.

    The file appears once it is complete. Trials are read one after the other, twice: what their
    columns are has to be known first.

    Parameters
    ----------
    trials
        The trials.
    target
        A file that ends with ``.parquet`` or ``.csv``.
    overwrite
        Whether a file that is there is replaced.

    Raises
    ------
    ConfigError
        If it cannot be there, or pyarrow is not installed.
    OSError
        If it cannot be written; it is as before then.
    """
    path = Path(target).absolute()
    write = check_target(path, overwrite=overwrite)
    table = make_table(trials)
    return ExportedReports(
        path=path,
        num_trials=len(trials),
        num_rows=write(table, path),
        columns=tuple(table.columns),
    )


def check_target(path: Path, *, overwrite: bool) -> Callable[[ReportTable, Path], int]:
    """Return what writes a file of this name. Not collective.

    Raises
    ------
    ConfigError
        If nothing does, if it cannot be there, or pyarrow is not installed.
    """
    write = _WRITERS.get(path.suffix)
    if write is None:
        raise ConfigError(
            f"{path}: a name that ends with {' or '.join(_WRITERS)} is needed, which says the "
            f"format."
        )
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path} cannot be written: {path.parent} is no directory. Make it first."
        )
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no regular file, and is not replaced by one.")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} exists. Give another path; --force replaces it.")
    if write is _write_parquet:
        _require_pyarrow()
    return write


def _require_pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "a .parquet file needs pyarrow: pip install 'hpctrain[data]'. A .csv file needs no "
            "other package: hpctrain tune export SWEEP FILE.csv."
        ) from error
    return pyarrow


def _write_parquet(table: ReportTable, path: Path) -> int:
    arrow = _require_pyarrow()
    kinds = {
        Kind.BOOLEAN: arrow.bool_(),
        Kind.INTEGER: arrow.int64(),
        Kind.UNSIGNED: arrow.uint64(),
        Kind.NUMBER: arrow.float64(),
        Kind.TEXT: arrow.string(),
    }
    schema: pyarrow.Schema = arrow.schema([(n, kinds[kind]) for n, kind in table.columns.items()])
    num_rows = 0
    with replacing(path) as file, arrow.parquet.ParquetWriter(file, schema) as writer:
        for batch in table.batches():
            arrays = [arrow.array(batch[field.name], field.type) for field in schema]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
            num_rows += len(arrays[0])
    return num_rows


def _write_csv(table: ReportTable, path: Path) -> int:
    num_rows = 0
    with replacing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text)
        writer.writerow(table.columns)
        for batch in table.batches():
            columns = [_csv_values(batch[name], kind) for name, kind in table.columns.items()]
            writer.writerows(zip(*columns, strict=True))
            num_rows += len(columns[0])
        # It would close the file.
        text.detach()
    return num_rows


def _csv_values(values: Sequence[Any], kind: Kind) -> Sequence[Any]:
    if kind is not Kind.BOOLEAN:
        return values
    return [None if value is None else str(value).lower() for value in values]


_WRITERS: dict[str, Callable[[ReportTable, Path], int]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
}
