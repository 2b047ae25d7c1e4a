"""What all tests share."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Generator
from functools import cache

import pytest

pytest_plugins = ["hpctrain.testing.pytest_plugin", "pytester"]

_WHY = "HPCTRAIN_REQUIRE_ALL=1: nothing may be skipped here"

# Minutes that CI has for the tests of these folders on two cores.
_BUDGETS = {
    "homes": (10, "homes"),
    "chaos": (12, "chaos elastic resilience"),
    "data": (
        6,
        "data gbdt lightgbm_trainer predict preprocessors serve sklearn_trainer xgboost_trainer",
    ),
    "frameworks": (
        15,
        "horovod_trainer huggingface_trainer jax_trainer lightning_trainer tensorflow_trainer",
    ),
}
_OTHERS = "all others"


def pytest_configure() -> None:
    """Let tests send Ctrl-C: what a shell starts in the background ignores it, children too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that import JAX here last: its threads make every later fork a risk.

    And note what a test says about the matrix of Slurm versions.
    """
    items.sort(key=lambda item: item.nodeid.startswith("tests/jax_trainer/"))
    for item in items:
        # nox -s slurm_versions reads it from pytest's JUnit file.
        for marker in item.iter_markers("matrix"):
            item.user_properties.append(("matrix", marker.args[0]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") is not None and _count_gpus() == 0:
        pytest.skip("no CUDA GPU on this machine")


@pytest.fixture
def num_gpus() -> int:
    """CUDA GPUs of this machine."""
    return _count_gpus()


@cache
def _count_gpus() -> int:
    # Without torch, which would initialise CUDA in this process.
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a skipped test fail where everything is required; CI machines have no GPU."""
    report = yield
    expected = hasattr(report, "wasxfail") or item.get_closest_marker("gpu") is not None
    if report.skipped and _is_all_required() and not expected:
        report.outcome = "failed"
        report.longrepr = f"{_WHY}: {_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let a file that skips itself as a whole fail where everything is required."""
    report = yield
    if report.skipped and _is_all_required():
        report.outcome = "failed"
        report.longrepr = f"{_WHY}: {_reason(report)}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in CI how long each part took, and which took longer than there is for it."""
    if not _is_all_required():
        return
    group_of = {
        folder: group for group, (_, folders) in _BUDGETS.items() for folder in folders.split()
    }
    seconds = dict.fromkeys([*_BUDGETS, _OTHERS], 0.0)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = report.nodeid.removeprefix("tests/").partition("/")[0]
                seconds[group_of.get(folder, _OTHERS)] += report.duration
    terminalreporter.section("minutes of each part, and what CI has for it")
    for group, taken in seconds.items():
        budget = _BUDGETS.get(group, (None,))[0]
        allowed = "" if budget is None else f" of {budget}"
        mark = "  TOO LONG" if budget is not None and taken > 60 * budget else ""
        terminalreporter.line(f"{group:<12}{taken / 60:6.1f}{allowed}{mark}")


def _is_all_required() -> bool:
    # pytest wants to be the first that imports a plug-in.
    from hpctrain.testing.pytest_plugin import is_all_required

    return is_all_required()


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    return str(report.longrepr)
