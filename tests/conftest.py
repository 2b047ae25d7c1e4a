"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest

pytest_plugins = ["hpctrain.testing.pytest_plugin", "pytester"]

_WHY = "HPCTRAIN_REQUIRE_ALL=1: nothing may be skipped here"


def pytest_configure() -> None:
    """Let tests send Ctrl-C: what a shell starts in the background ignores it, children too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


def _is_all_required() -> bool:
    # pytest wants to be the first that imports a plug-in.
    from hpctrain.testing.pytest_plugin import is_all_required

    return is_all_required()


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    return str(report.longrepr)
