"""Functions as Ray Tune has them: what they return, what they do not report, when they stop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain
from hpctrain import ConfigError, RunConfig, tune
from hpctrain.errors import HpctrainError
from hpctrain.tune import shared_arguments
from hpctrain.tune.ledger import SweepLedger, SweepPaths
from hpctrain.tune.shared_arguments import LARGE_BYTES, share_arguments
from hpctrain.tune.trainable import check_trainable
from hpctrain.tune.trial_function import TrialFunction, find_metrics


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")


def fit(storage: Path, trainable: Any, space: dict[str, Any], **options: Any) -> tune.ResultGrid:
    run_config = RunConfig(storage_path=storage, name="s", verbose=1, **options)
    return tune.Tuner(trainable, param_space=space, run_config=run_config).fit()


def test_what_a_function_returns_is_its_last_report(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> Any:
        hpctrain.report({"loss": 2.0})
        returns: dict[str, Any] = {
            "dict": {"loss": 1.0},
            "number": np.float32(0.5),
            "nothing": None,
            "text": "done",
        }
        return returns[config["what"]]

    space = {"what": tune.grid_search(["dict", "number", "nothing", "text"])}
    grid = fit(tmp_path, train, space)
    assert not grid.errors
    assert [result.metrics for result in grid] == [
        {"loss": 1.0},
        {"_metric": 0.5},
        {"loss": 2.0},
        {"loss": 2.0},
    ]
    assert [len(result.metrics_history) for result in grid] == [2, 2, 1, 1]
    log = (tmp_path / "s/trial_00003/logs/1/rank-00000.out").read_text()
    assert "train() returned a str, which is not reported" in log
    assert "returned" not in (tmp_path / "s/trial_00002/logs/1/rank-00000.out").read_text()


def with_data(config: Any, *, data: Any) -> None:
    """Take data by name."""


@functools.wraps(with_data)
def given_data(config: Any) -> None:
    """Give the data."""
    with_data(config, data=1)


class WithData:
    """Takes data by name."""

    __call__ = staticmethod(with_data)

    def bound(self, config: Any, *, data: Any) -> None:
        """Take data by name."""


def test_an_argument_by_name_is_needed_unless_the_function_is_given_it() -> None:
    for function in (
        given_data,
        tune.with_parameters(with_data, data=1),
        TrialFunction(given_data),
    ):
        check_trainable(function)
    for function in (with_data, functools.partial(with_data), WithData(), WithData().bound):
        with pytest.raises(ConfigError, match=r"\(\*, data\): a trial calls it"):
            check_trainable(function)


@pytest.mark.parametrize(
    ("returned", "metrics"),
    [
        (None, None),
        ({}, None),
        (True, None),
        (float("nan"), None),
        (np.arange(2), None),
        (0, {"_metric": 0}),
        (np.int64(3), {"_metric": 3}),
        ({"a": 1}, {"a": 1}),
    ],
    ids=["none", "empty", "bool", "nan", "array", "zero", "numpy", "dict"],
)
def test_what_is_no_metric_is_not_reported(returned: Any, metrics: Any) -> None:
    assert find_metrics(returned) == metrics


def test_a_function_keeps_its_name_and_what_it_takes() -> None:
    def without() -> None:
        """Take nothing."""

    def with_data(config: dict[str, Any], data: Any, more: int) -> None:
        """Take data."""

    from hpctrain.train_function import takes_config

    assert not takes_config(TrialFunction(without))
    assert TrialFunction(without).__name__ == "without"
    big = np.zeros(LARGE_BYTES)
    sharing = share_arguments(tune.with_parameters(with_data, data=big, more=3))
    assert takes_config(TrialFunction(sharing.trainable))  # type: ignore[arg-type]
    assert TrialFunction(sharing.trainable).__name__ == "with_data"  # type: ignore[arg-type]
    assert len(sharing.contents) == 1


def test_a_trial_that_reports_nothing_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(config: dict[str, Any]) -> None:
        if config["x"] == 1:
            hpctrain.report({"loss": 1.0})

    grid = fit(tmp_path, train, {"x": tune.grid_search([1, 2])})
    said = capfd.readouterr().out
    assert "trial_00001 finished without a report" in said
    assert "2 trials, 0 failed, 1 without a report: hpctrain tune status" in said
    assert grid.get_best_result("loss", "min").config == {"x": 1}
    assert grid.num_terminated == 2
    restored = tune.Tuner.restore(tmp_path / "s", train).get_results()
    with pytest.raises(ConfigError, match="trial_00001 ended without a report"):
        restored.get_best_result("los", "min")


def test_one_trial_that_reports_nothing_is_said_where_it_is_the_best(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    grid = fit(tmp_path, lambda config: None, {})
    capfd.readouterr()
    assert grid.get_best_result().metrics == {}
    assert "trial_00000 ended without a report" in capfd.readouterr().err


@pytest.mark.parametrize(
    "stop",
    [{"training_iteration": 3}, {"acc": 0.25}, lambda report, metrics: metrics["acc"] >= 0.25],
    ids=["reports", "metric", "function"],
)
def test_the_report_that_meets_the_criterion_is_the_last_one(
    stop: dict[str, float] | Callable[[int, Mapping[str, Any]], bool], tmp_path: Path
) -> None:
    def train(config: dict[str, Any]) -> None:
        for step in range(5000):
            hpctrain.report({"acc": step / 8})

    (result,) = fit(tmp_path, train, {}, stop=stop)
    assert result.error is None
    assert [report["acc"] for report in result.metrics_history] == [0, 0.125, 0.25]


def test_a_large_argument_is_stored_once_and_is_only_the_owners(tmp_path: Path) -> None:
    def train(config: dict[str, Any], data: Any, scale: float) -> dict[str, float]:
        return {"sum": float(data.sum()) * scale * config["x"]}

    size = 4 * LARGE_BYTES
    function = tune.with_parameters(train, data=np.ones(size // 8), scale=0.5)
    trainable = tune.with_resources(function, {"cpu": 1})
    grid = fit(tmp_path, trainable, {"x": tune.grid_search([1, 2])})
    assert not grid.errors
    assert [result.metrics["sum"] for result in grid] == [size / 16, size / 8]
    (stored,) = (tmp_path / "s/parameters").iterdir()
    assert size < stored.stat().st_size < 1.1 * size
    assert stored.stat().st_mode & 0o777 == 0o600
    for result in grid:
        assert (Path(result.path) / "spec.pkl").stat().st_size < LARGE_BYTES
    written = stored.read_bytes()
    damages: list[tuple[int, bytes, str]] = [
        (0o620, written, "can be written by others"),
        (0o600, written[: size // 2] + b"\1" + written[size // 2 + 1 :], "is not what was written"),
        (0o600, written[:100], "is not what was written"),
        (0o600, b"", "is not what was written"),
    ]
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path / "s"))
    for number, (mode, content, message) in enumerate(damages, start=2):
        stored.write_bytes(content)
        stored.chmod(mode)
        # A rank does not open it.
        with pytest.raises(HpctrainError, match=message):
            shared_arguments._read(Path(grid[0].path), "data", stored.stem)
        # The next tuner has the value, and writes it again.
        ledger.append("trial-added", trial=f"trial_0000{number}", config={"x": number})
        again = tune.Tuner.restore(tmp_path / "s", trainable).fit()
        assert not again.errors
        assert again[number].metrics["sum"] == number * size / 16
        assert stored.read_bytes() == written
        assert stored.stat().st_mode & 0o777 == 0o600
    stored.unlink()
    with pytest.raises(ConfigError, match="is gone"):
        shared_arguments._read(Path(grid[0].path), "data", stored.stem)
    ledger.append("trial-added", trial="trial_00006", config={"x": 3})
    grid = tune.Tuner.restore(tmp_path / "s", trainable).fit()
    assert not grid.errors, "it is written again"
    assert grid[6].metrics["sum"] == 3 * size / 16
