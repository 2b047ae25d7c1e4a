from __future__ import annotations

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hpctrain.errors import ConfigError, LaunchError, RunStoppedError, SupersededError
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.metric_check import UnreportedMetricError
from hpctrain.tune.person_stops import PersonStops, request_stop
from hpctrain.tune.place import errors_of_files
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.sweep_errors import errors_of_sweep

HOW = "Tuner.restore('s', trainable).fit() goes on"


def message(root: Path, error: Exception, becomes: type[Exception] | None = None) -> str:
    """Return what the error says once the next step was added."""
    paths, sweep = SweepPaths(root=root), SimpleNamespace(reason="its job ends")
    with (
        pytest.raises(becomes or type(error)) as raised,
        errors_of_sweep(paths, cast("Sweep", sweep), PersonStops(paths), HOW),
    ):
        raise error
    return str(raised.value)


def explained(root: Path, error: Exception) -> Exception:
    """Return the error that ends the sweep in its place."""
    paths, sweep = SweepPaths(root=root), SimpleNamespace(reason="")
    with (
        pytest.raises(Exception, match=r"\A") as raised,
        errors_of_files(paths, HOW),
        errors_of_sweep(paths, cast("Sweep", sweep), PersonStops(paths), HOW),
    ):
        raise error
    return raised.value


def reason(root: Path) -> str:
    """Return what the ledger has of it."""
    last = SweepPaths(root=root).events.read_text().splitlines()[-1]
    return str(json.loads(last)["reason"])


def test_a_sweep_that_its_job_stops_goes_on_in_another_one(tmp_path: Path):
    said = message(tmp_path, RunStoppedError("the sweep stopped because the job ends."))
    assert said == f"the sweep stopped because the job ends. In another job {HOW}."
    assert reason(tmp_path) == "its job ends"


def test_a_sweep_that_a_person_stops_goes_on_here(tmp_path: Path):
    request_stop(SweepPaths(root=tmp_path), now=False)
    assert message(tmp_path, RunStoppedError("stopped.")) == f"stopped. {HOW}."


def test_an_impossible_trial_asks_for_another_name(tmp_path: Path):
    said = message(tmp_path, ConfigError("no metric 'los'."))
    assert said.startswith("no metric 'los'. The trials were stopped; get_results() has what they")
    assert "Begin again under another name" in said


def test_a_metric_that_no_trial_reports_asks_for_a_right_function_or_a_right_name(tmp_path: Path):
    said = message(tmp_path, UnreportedMetricError("no 'los'."), ConfigError)
    assert "restart_errored=True).fit(). If the metric's name is wrong, correct it" in said
    assert said.endswith("begin a new sweep: another RunConfig(name=...), or existing='restart'.")


@pytest.mark.parametrize("error", [SupersededError("taken over"), LaunchError("no srun")])
def test_other_errors_stay_as_they_are(error: Exception, tmp_path: Path):
    assert message(tmp_path, error) == str(error)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("example.org did not answer"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "points.json"),
    ],
    ids=repr,
)
def test_an_error_of_a_search_is_none_of_the_files_of_the_sweep(
    error: OSError, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert explained(tmp_path, error) is error
    assert reason(tmp_path) == f"{type(error).__name__}: {error}"
    assert f"because of an error; {HOW}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (errno.ENOSPC, None),
        (errno.ENOSPC, "/tmp/socket"),
        (errno.EACCES, "sweep/trial_00001"),
        (errno.EACCES, "sweep.20260101-000000-abcd"),
        (errno.EROFS, "sweep"),
    ],
)
def test_an_error_of_the_files_of_the_sweep_names_them(
    number: int, name: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    paths = SweepPaths(root=tmp_path / "sweep")
    path = None if name is None else str(tmp_path / name)
    error = explained(paths.root, OSError(number, "because", path))
    assert isinstance(error, LaunchError)
    expected = f"{path or paths.events} cannot be written: because. Once it can, begin the"
    assert str(error).startswith(expected)
    assert not capsys.readouterr().err


def test_an_error_of_a_scheduler_is_logged_with_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert message(tmp_path, ZeroDivisionError("in on_result")) == "in on_result"
    assert reason(tmp_path) == "ZeroDivisionError: in on_result"
    assert f"because of an error; {HOW}" in capsys.readouterr().err
