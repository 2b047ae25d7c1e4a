"""What all tests share."""

from __future__ import annotations

import io
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hpctrain.execute.fork_server import ForkServers
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.testing.slurm import VirtualCluster

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes golden files in place of comparing with them."""
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write the files that tests/newcomer and tests/docs compare with, instead",
    )


def pytest_configure() -> None:
    """Let tests send Ctrl-C: what a shell starts in the background ignores it, children too.

    And let none of them print a table for the terminal that pytest, or pytest-xdist, has.
    """
    os.environ.pop("COLUMNS", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.version_info < (3, 11):
        _let_pathlib_look_up_what_it_calls()


def _let_pathlib_look_up_what_it_calls() -> None:
    """Let a test that replaces a function of os or io replace it for pathlib, too."""
    # Until Python 3.10 pathlib keeps those that were there when it was imported.
    called = dict.fromkeys(("mkdir", "unlink", "rmdir", "rename", "replace", "link", "stat"), os)

    def look_up(name: str, module: ModuleType) -> Callable[..., Any]:
        return lambda *args, **options: getattr(module, name)(*args, **options)

    for name, module in {**called, "open": io}.items():
        setattr(pathlib._normal_accessor, name, look_up(name, module))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the bytecode of tests, with the assertions that pytest has rewritten in them.

    Images of containers set PYTHONDONTWRITEBYTECODE: each process of pytest would make it anew.
    What tests write and import themselves stays without, as it may change within a second.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that take more examples if they are asked to."""
    if "each_example" in getattr(item, "fixturenames", ()):
        item.add_marker("properties")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are marked long, unless ``-m`` names them.

    Put those that import JAX here last: its threads make every later fork a risk. Of them the files
    that need a cluster come first, as they take longest: no process runs one alone at the end. And
    note what a test says about the matrix of Slurm versions.
    """
    if "long" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    on_cluster = {item.path for item in items if item.get_closest_marker("slurm")}
    items.sort(key=lambda item: ("jax" in item.nodeid) * (1 if item.path in on_cluster else 2))
    for item in items:
        # nox -s slurm_versions reads it from pytest's JUnit file.
        for marker in item.iter_markers("matrix"):
            item.user_properties.append(("matrix", marker.args[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a process a file at a time, and the tests of JAX after all others."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class JaxLast(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return f"jax of {file}" if "jax" in nodeid else file

    return JaxLast(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") is not None and _count_gpus() == 0:
        pytest.skip("no CUDA GPU on this machine")


@pytest.fixture
def num_gpus() -> int:
    """CUDA GPUs of this machine."""
    return _count_gpus()


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run directory in which there is nothing but the folder of the checkpoints."""
    from hpctrain.rundir.paths import RunPaths

    paths = RunPaths(tmp_path / "run")
    paths.checkpoints.mkdir(parents=True)
    return paths


@pytest.fixture(scope="session")
def kept_fork_servers() -> Iterator[dict[tuple[str, ...], ForkServers]]:
    """Processes that ranks are forked from, from one file to the next: see tests/imports.py."""
    from tests.imports import close_servers

    servers: dict[tuple[str, ...], ForkServers] = {}
    yield servers
    close_servers(servers)


@pytest.fixture
def in_slurm(virtual_slurm: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> VirtualCluster:
    """The cluster of all tests, whose Slurm this process itself asks."""
    from hpctrain.slurm import pmi

    for name, value in virtual_slurm.environ.items():
        monkeypatch.setenv(name, value)
    # Another test of this process may have asked a srun of its own.
    pmi.offered_pmi_types.cache_clear()
    monkeypatch.setattr(pmi, "_asked", [])
    return virtual_slurm


@pytest.fixture
def each_example() -> Callable[[Callable[[Any], None]], None]:
    """Call a function with one seeded generator of NumPy after another; a failure has its seed.

    200 times, or as often as HPCTRAIN_EXAMPLES says: ``nox -s properties`` sets it to 5000.
    """
    import numpy as np

    def check(example: Callable[[np.random.Generator], None]) -> None:
        for seed in range(int(os.environ.get("HPCTRAIN_EXAMPLES", "200"))):
            try:
                example(np.random.default_rng(seed))
            except Exception as error:
                raise AssertionError(f"example of seed {seed}: {error!r}") from error

    return check


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file: what a translation gave when somebody found it good.

    ``HPCTRAIN_UPDATE_GOLDEN=1 pytest tests/plan tests/slurm_templates`` writes them again; read the
    difference before you commit it.
    """
    folder = request.path.parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / name
        if os.environ.get("HPCTRAIN_UPDATE_GOLDEN") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no {path}: HPCTRAIN_UPDATE_GOLDEN=1 pytest {request.path}"
        assert text == path.read_text(encoding="utf-8")

    return compare


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
    # Of that many files at once, see tests/run.sh, each has its share of the time.
    processes = terminalreporter.config.getoption("numprocesses", None) or 1
    for group, total in seconds.items():
        taken = total / processes
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
