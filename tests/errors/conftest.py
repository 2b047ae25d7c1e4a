"""Run a user's script, and compare all that it prints."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.terminal import press

# What each script begins with, so that those of the tests show the mistake only.
_HEAD = """\
import hpctrain
from hpctrain import CheckpointConfig, DataParallelTrainer, FailureConfig
from hpctrain import RunConfig, ScalingConfig

def fit(train, workers=2, config=None, storage_path="runs", **run):
    scaling = ScalingConfig(num_workers=workers)
    run = RunConfig(name="run", storage_path=storage_path, **run)
    options = {"train_loop_config": config, "scaling_config": scaling, "run_config": run}
    return DataParallelTrainer(train, **options).fit()

"""
_UNSTABLE = (
    # Python marks the part of a line that failed, each version in its own way.
    (re.compile(r"^ *[~^]+ *\n", re.MULTILINE), ""),
    (re.compile(r"0x[0-9a-f]{12,}(?: \[\w+\])?"), "0x..."),
    (re.compile(r"for \d+ s, since \d\d:\d\d:\d\d"), "for N s, since TIME"),
    (re.compile(r'(File "(?:SITE|LIB)/[^"]*", line )\d+'), r"\1N"),
)
_DISPLAY = re.compile(
    r"hpctrain: run (?:starting|running attempt 1: .*|failed|finished)\n"
    r"|^checkpoint \d+\n|  checkpoint \d+$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Outcome:
    """What a script printed, and how it ended."""

    err: str
    """Standard error output; what differs between machines and times is replaced. In a terminal
    all that it showed."""
    out: str
    """The same of standard output, without the states of the run and its checkpoints."""
    status: int
    """The exit code; of a process that a signal ended, the signal's number with a minus."""
    num_lines: int
    """All lines that were printed, also those left out above."""

    def assert_is(self, err: str, *, out: str = "", status: int) -> None:
        """Compare the whole outcome of a mistake, which fits into 15 lines."""
        assert (self.err, self.out, self.status) == (err, out, status)
        assert self.num_lines <= 15


ScriptRunner = Callable[..., Outcome]
# A start, a mistake, and the end of all ranks, on a machine that is busy: none waits for a timeout.
SECONDS = 60


@pytest.fixture
def run_script(tmp_path: Path) -> ScriptRunner:
    """Return a function that runs a script as its user does."""

    def run(
        script: str,
        *,
        command: Sequence[str] = (sys.executable,),
        environment: dict[str, str] | None = None,
    ) -> Outcome:
        (tmp_path / "train.py").write_text(_HEAD + textwrap.dedent(script))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HPCTRAIN_")}
        done = subprocess.run(
            [*command, "train.py"],
            cwd=tmp_path,
            # UCX prints which network interfaces have gone, such as those of a virtual cluster.
            env={
                **inherited,
                "HPCTRAIN_LAUNCHER": "auto",
                "UCX_LOG_LEVEL": "fatal",
                **(environment or {}),
            },
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        return Outcome(
            err=normalize(done.stderr, tmp_path),
            out=_DISPLAY.sub("", normalize(done.stdout, tmp_path)),
            status=done.returncode,
            num_lines=len((done.stdout + done.stderr).splitlines()),
        )

    return run


@pytest.fixture
def run_notebook(tmp_path: Path) -> Callable[[str, str], str]:
    """Return a function that runs cells in IPython, with a program that reads and executes them."""
    pytest.importorskip("IPython")

    def run(cells: str, program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=cells,
            cwd=tmp_path,
            env={**os.environ, "HPCTRAIN_LAUNCHER": "local", "IPYTHONDIR": str(tmp_path / "ipy")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return re.sub("<ipython-input-[^>]*>", "CELL", normalize(done.stdout, tmp_path))

    return run


@pytest.fixture
def small_filesystem() -> Iterator[Callable[[Path, str], None]]:
    """Return a function that mounts a small filesystem until the test ends."""
    if os.geteuid() != 0:
        pytest.skip("a small filesystem of our own needs root (mount)")
    with contextlib.ExitStack() as at_end:

        def mount(path: Path, size: str) -> None:
            path.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "hpctrain-test", str(path)]
            subprocess.run(command, check=True)
            at_end.callback(subprocess.run, ["umount", "--lazy", str(path)], check=True)

        yield mount


def normalize(text: str, directory: Path) -> str:
    """Replace what differs between machines, times and versions of Python."""
    paths = sysconfig.get_paths()
    for found, name in (
        (str(directory), "DIR"),
        (paths["purelib"], "SITE"),
        (paths["stdlib"], "LIB"),
        (sys.executable, "PYTHON"),
    ):
        text = text.replace(found, name)
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "HOST", text)
    for pattern, replacement in _UNSTABLE:
        text = pattern.sub(replacement, text)
    return text


@pytest.fixture
def script_in_terminal(tmp_path: Path) -> ScriptRunner:
    """Return a function that runs a script in a terminal, and presses a key there."""

    def run(script: str, *, key: bytes, once: str) -> Outcome:
        (tmp_path / "train.py").write_text(_HEAD + textwrap.dedent(script))
        shown, status = press(
            key,
            [sys.executable, "train.py"],
            once=(tmp_path / once).exists,
            cwd=tmp_path,
            environ={**os.environ, "HPCTRAIN_LAUNCHER": "auto"},
            timeout_s=SECONDS,
        )
        text = normalize(shown, tmp_path)
        return Outcome(err=text, out="", status=status, num_lines=len(text.splitlines()))

    return run
