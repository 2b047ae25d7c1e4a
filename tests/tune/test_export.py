"""The reports of all trials as one table."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.errors import ConfigError
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import scan_lines
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.tune.columns import Column, Kind, convert, name_columns
from hpctrain.tune.export import export_reports
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.report_table import TableTrial, make_table, read_trial_reports
from hpctrain.tune.result_grid import make_grid
from hpctrain.tune.trial import Trial, TrialState

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

Make = Callable[..., TableTrial]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make the run of a trial with reports of these metrics."""
    made = 0

    def make(
        *reports: Mapping[str, Any], config: Mapping[str, Any] | None = None, **changes: Any
    ) -> TableTrial:
        nonlocal made
        trial = Trial(
            trial_id=f"trial_{made:05d}",
            config=config or {},
            state=TrialState.TERMINATED,
            reports=len(reports),
        )
        made += 1
        paths = RunPaths(tmp_path / "sweep" / trial.trial_id)
        paths.root.mkdir(parents=True)
        state = RunStatus(
            name=trial.trial_id, state=RunState.FINISHED, launcher="local", reports=len(reports)
        )
        write_status(paths, state.with_changes(**changes))
        write_reports(paths, reports)
        return TableTrial(trial=trial, run=paths.root)

    return make


def write_reports(
    paths: RunPaths, reports: Sequence[Mapping[str, Any]], *, attempt: int = 1, first: int = 1
) -> None:
    with open(paths.metrics, "a", encoding="utf-8") as file:
        for number, metrics in enumerate(reports, first):
            line = {"report": number, "attempt": attempt, "time": 100.0 + number}
            file.write(json.dumps({**line, "metrics": metrics, "checkpoint": None}) + "\n")


def read(trials: Sequence[TableTrial], path: Path) -> pyarrow.Table:
    export_reports(trials, path, overwrite=True)
    return pyarrow.parquet.read_table(path)


def test_each_report_of_each_trial_is_a_row(make: Make, tmp_path: Path) -> None:
    trials = [
        make({"loss": 0.5}, {"loss": 0.25, "val": {"loss": 1}}, config={"lr": 0.1, "m": {"n": 2}}),
        make({"loss": 1.0, "größe": True}, config={"lr": 1}),
    ]
    table = read(trials, tmp_path / "t.parquet")
    assert table.to_pydict() == {
        "trial_id": ["trial_00000", "trial_00000", "trial_00001"],
        "state": ["TERMINATED"] * 3,
        "training_iteration": [1, 2, 1],
        "time": [101.0, 102.0, 101.0],
        "attempt": [1, 1, 1],
        "loss": [0.5, 0.25, 1.0],
        "val/loss": [None, 1, None],
        "größe": [None, None, True],
        "config/lr": [0.1, 0.1, 1.0],
        "config/m/n": [2, 2, None],
    }
    assert [str(table.schema.field(name).type) for name in ("val/loss", "größe", "time")] == [
        "int64",
        "bool",
        "double",
    ]


def test_reports_that_come_after_the_first_look_are_in_no_row(make: Make, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    table = make({"loss": 1.0})
    trials = {table.trial.trial_id: table.trial}
    paths = SweepPaths(root=tmp_path / "sweep")
    grid = make_grid(paths, trials, metric="loss", mode="min")
    for reports in ([], [{"loss": 2.0}, {"loss": 3.0}]):
        write_reports(RunPaths(table.run), reports, first=2)
        frame = grid.get_dataframe(filter_metric="training_iteration", filter_mode="max")
        assert frame["training_iteration"].tolist() == [1]
    with pytest.raises(ConfigError, match="no trial has reported it") as caught:
        grid.get_dataframe(filter_metric="iterations_since_restore", filter_mode="max")
    assert "trial_id" not in str(caught.value), "what is named has been reported"


def test_a_configuration_with_keys_that_are_no_text_has_columns_of_their_names(
    make: Make, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"model": {("a", 1): 2, 3: {"x"}}, "itself": {}}
    config["itself"]["self"] = config["itself"]
    (row,) = read([make({"loss": 1.0}, config=config)], tmp_path / "t.parquet").to_pylist()
    found = {name: value for name, value in row.items() if name.startswith("config/")}
    assert found == {
        "config/model/('a', 1)": 2,
        "config/model/3": "{'x'}",
        "config/itself/self": "...",
    }


def test_a_trial_without_a_report_has_a_row_too(make: Make, tmp_path: Path) -> None:
    table = read([make({"loss": 1.0}), make(config={"lr": 2})], tmp_path / "t.parquet")
    assert table.to_pylist()[1] == {
        "trial_id": "trial_00001",
        "state": "TERMINATED",
        "training_iteration": 0,
        "time": None,
        "attempt": None,
        "loss": None,
        "config/lr": 2,
    }
    assert read([], tmp_path / "none.parquet").num_rows == 0


def test_what_an_attempt_reported_again_counts_once(make: Make, tmp_path: Path) -> None:
    trial = make({"loss": 4.0}, {"loss": 3.0}, {"loss": 2.0})
    write_reports(RunPaths(trial.run), [{"loss": 0.5}, {"loss": 0.25}], attempt=2, first=2)
    table = read([trial], tmp_path / "t.parquet")
    assert table["loss"].to_pylist() == [4.0, 0.5, 0.25]
    assert table["attempt"].to_pylist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("values", "kind", "held"),
    [
        ([True, None, False], "bool", [True, None, False]),
        ([True, 3], "int64", [1, 3]),
        ([-(2**63), 2**63 - 1], "int64", [-(2**63), 2**63 - 1]),
        ([1, 2**64 - 1], "uint64", [1, 2**64 - 1]),
        ([-1, 2**63], "double", [-1.0, 2.0**63]),
        ([2**64, 10**400, -(10**400)], "double", [2.0**64, math.inf, -math.inf]),
        ([1, 0.5], "double", [1.0, 0.5]),
        ([math.inf, -math.inf], "double", [math.inf, -math.inf]),
        ([None, None], "double", [None, None]),
        ([0.5, "text", 3, None], "string", ["0.5", "text", "3", None]),
        ([[1, [2]], math.nan, "", True], "string", ["[1, [2]]", "NaN", "", "true"]),
        (["\ud800 half", '\x00\n,"'], "string", ["\\ud800 half", '\x00\n,"']),
    ],
)
def test_a_column_has_the_type_that_holds_all_its_values(
    make: Make, tmp_path: Path, values: list[Any], kind: str, held: list[Any]
) -> None:
    # Half of them in one trial, half in the other, as metrics and as configuration.
    half = len(values) // 2
    trials = [
        make(*({"m": value} for value in part), config={"c": part[-1]})
        for part in (values[:half], values[half:])
    ]
    table = read(trials, tmp_path / "t.parquet")
    assert str(table.schema.field("m").type) == kind
    assert table["m"].to_pylist() == held


def test_nan_is_not_null(make: Make, tmp_path: Path) -> None:
    table = read([make({"m": math.nan}, {"m": None}, {})], tmp_path / "t.parquet")
    first, *rest = table["m"].to_pylist()
    assert math.isnan(first)
    assert rest == [None, None]


def test_names_of_metrics_never_collide(make: Make, tmp_path: Path) -> None:
    odd = {"": 1, "state": 2, "metrics/state": 3, "config/lr": 4, "\ud800": 5, "a b,\n": 6}
    trials = [make(odd, config={"lr": 7, "": 8})]
    (row,) = read(trials, tmp_path / "t.parquet").to_pylist()
    assert row["state"] == "TERMINATED"
    assert row["config/lr"] == 7
    assert list(row.items())[5:] == [
        ("", 1),
        ("metrics/state", 2),
        ("metrics/metrics/state", 3),
        ("metrics/config/lr", 4),
        ("\\ud800", 5),
        ("a b,\n", 6),
        ("config/lr", 7),
        ("config/", 8),
    ]


def test_csv_has_the_same_rows_and_needs_no_pyarrow(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    trials = [make({"loss": math.nan, "ok": True}, {"note": 'a,"\nb', "loss": 1e-300})]
    exported = export_reports(trials, tmp_path / "t.csv", overwrite=False)
    assert (exported.num_trials, exported.num_rows) == (1, 2)
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["loss"] for row in rows] == ["nan", "1e-300"]
    assert [row["ok"] for row in rows] == ["true", ""]
    assert [row["note"] for row in rows] == ["", 'a,"\nb']
    with pytest.raises(ConfigError, match=r"pip install 'hpctrain\[data\]'"):
        export_reports(trials, tmp_path / "t.parquet", overwrite=False)


def test_what_is_damaged_or_gone_is_said_and_the_rest_is_written(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = [make({"m": n}, {"m": 10 + n}) for n in range(5)]
    with open(trials[1].run / "metrics.jsonl", "ab") as file:
        file.write(b"\xff\xfe{\n" + b'{"report": 3')
    (trials[2].run / "metrics.jsonl").unlink()
    (trials[3].run / "metrics.jsonl").unlink()
    (trials[3].run / "metrics.jsonl").mkdir()
    for path in trials[4].run.iterdir():
        path.unlink()
    trials[4].run.rmdir()
    table = read(trials, tmp_path / "t.parquet")
    assert table["m"].to_pylist() == [0, 10, 1, 11, None, None, None]
    assert table["training_iteration"].to_pylist() == [1, 2, 1, 2, 0, 0, 0]
    said = capsys.readouterr().err
    for trial, what in (
        (1, "1 line is damaged, and left out"),
        (1, "the last line is torn"),
        (2, "it ends at report 0 of 2"),
        (3, "Is a directory"),
        (4, "has no reports any more, and the sweep has seen 2"),
    ):
        lines = [line for line in said.splitlines() if f"trial_0000{trial}: " in line]
        assert any(what in line for line in lines), (trial, what, said)
    assert "trial_00000" not in said


def test_a_trial_that_ends_while_it_is_read_has_lost_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make({"m": 1}, {"m": 2}, state=RunState.RUNNING, reports=1)
    paths = RunPaths(made.run)

    def scan(path: Path, is_valid: Callable[[Any], bool]) -> Any:
        lines = scan_lines(path, is_valid)
        if path == paths.metrics:
            write_reports(paths, [{"m": 3}], first=3)
            write_status(
                paths,
                RunStatus(name="t", state=RunState.FINISHED, launcher="local", reports=3),
            )
        return lines

    monkeypatch.setattr("hpctrain.tune.report_table.scan_lines", scan)
    assert read_trial_reports(paths, made.trial)[1] == []


def test_what_a_trial_reports_meanwhile_is_left_out(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = [make({"m": 1}, {"m": 2}), make({"m": 3})]
    table = make_table(trials)
    write_reports(RunPaths(trials[0].run), [{"m": "late", "new": 1}], first=3)
    (batch,) = table.batches()
    assert batch["m"] == [1, 2, 3]
    assert "warning" not in capsys.readouterr().err
    # Its second attempt resumes from the first report, and reports another type.
    write_reports(RunPaths(trials[0].run), [{"m": "text", "new": 1}], attempt=2, first=2)
    (batch,) = table.batches()
    assert batch["m"] == [1, None, 3]
    assert "trial_00000 has made reports again meanwhile, and 2 of" in capsys.readouterr().err


def test_rows_are_handed_on_in_batches(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctrain.tune.report_table._CELLS_OF_A_BATCH", 12)
    trials = [make({"m": n}) for n in range(5)]
    batches = list(make_table(trials).batches())
    assert [batch["m"] for batch in batches] == [[0, 1], [2, 3], [4]]


def test_the_file_is_as_before_if_the_disk_is_full(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    path.write_text("before")
    trials = [make({"m": 1})]

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpctrain.rundir.files.os.replace", fail)
    with pytest.raises(OSError, match="No space left") as error:
        export_reports(trials, path, overwrite=True)
    assert error.value.filename == str(path)
    assert path.read_text() == "before"
    assert not list(tmp_path.glob(".t.parquet*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("t.json", r"ends with \.parquet or \.csv"),
        ("t", r"ends with \.parquet or \.csv"),
        ("there.csv", "exists. Give another path; --force replaces it"),
        ("nowhere/t.csv", "nowhere is no directory"),
        ("folder.csv", "no regular file"),
    ],
)
def test_where_it_cannot_be_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there.csv").touch()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ConfigError, match=message):
        export_reports([], tmp_path / name, overwrite=False)


def test_a_grid_is_written_with_what_json_cannot_hold_as_text(make: Make, tmp_path: Path) -> None:
    made = [
        make({"m": 1}, config={"path": Path("/data"), "pair": (1, 2)}),
        make({"m": 2}, config={"path": Path("/more"), "pair": (3, 4)}),
    ]
    trials = {each.trial.trial_id: each.trial for each in made}
    grid = make_grid(SweepPaths(root=tmp_path / "sweep"), trials, metric=None, mode=None)
    grid.write_parquet(tmp_path / "t.parquet")
    grid.write_parquet(tmp_path / "t.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    assert table["config/path"].to_pylist() == ["/data", "/more"]
    assert table["config/pair"].to_pylist() == ["[1, 2]", "[3, 4]"]
    with pytest.raises(ConfigError, match=r"ends with \.parquet is needed"):
        grid.write_parquet(tmp_path / "t.csv")


_ARROW = {
    Kind.BOOLEAN: pyarrow.bool_(),
    Kind.INTEGER: pyarrow.int64(),
    Kind.UNSIGNED: pyarrow.uint64(),
    Kind.NUMBER: pyarrow.float64(),
    Kind.TEXT: pyarrow.string(),
}
_VALUES: Sequence[Callable[[np.random.Generator], Any]] = [
    lambda rng: None,
    lambda rng: bool(rng.integers(2)),
    lambda rng: int(rng.integers(-5, 5)),
    lambda rng: int(rng.choice([-1, 1])) * 2 ** int(rng.integers(60, 70)) - int(rng.integers(2)),
    lambda rng: 10 ** int(rng.integers(300, 400)),
    lambda rng: float(rng.choice([0.0, 1.5, -1e308, math.inf, -math.inf, math.nan])),
    lambda rng: str(rng.choice(["", "a", "1", "größe", "NaN"])) + "\udc80" * int(rng.integers(2)),
    lambda rng: [1, [], "\ud800"],
]


def test_every_value_has_a_place_in_its_column_and_late_ones_never_break_it(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        kinds = rng.choice(len(_VALUES), size=rng.integers(1, 4))
        found = [_VALUES[rng.choice(kinds)](rng) for _ in range(rng.integers(0, 7))]
        column = Column()
        for value in found:
            column.see(value)
        held = [convert(value, column.kind) for value in found]
        assert [value is None for value in held] == [value is None for value in found]
        back = pyarrow.array(held, _ARROW[column.kind])
        back.validate(full=True)
        if column.kind is not Kind.TEXT:
            for kept, value in zip(back.to_pylist(), found, strict=True):
                # Only an integer among floats may be rounded.
                is_rounded = column.kind is Kind.NUMBER and isinstance(value, int)
                assert kept == value or value != value or is_rounded
        for kind, arrow in _ARROW.items():
            pyarrow.array([convert(value, kind) for value in found], arrow).validate(full=True)

    each_example(check)


def test_no_two_columns_have_one_name(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        def names() -> list[str]:
            parts = rng.choice(["", "a", "metrics/", "config/", "\ud800", "\\ud800"], (4, 3))
            return list(dict.fromkeys(map("".join, parts)))

        metrics, config = names(), names()
        of_metrics, of_config = name_columns(metrics, config, ["a", "state"])
        found = [*of_metrics.values(), *of_config.values(), "a", "state"]
        assert len(set(found)) == len(found)
        assert (list(of_metrics), list(of_config)) == (metrics, config)

    each_example(check)
