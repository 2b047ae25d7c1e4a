"""A new user: a clean directory, the wheel of this checkout, and a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
# As long as the temporary directories in whose place golden files show them: lines wrap alike.
HOME, VENV = "/home/a-newcomer", "/opt/environment"


# At both widths; what changes something is done once, in the narrow terminal.
LOOKS = re.compile(r"hpctrain (list|status|history|checkpoints|logs|submit --dry-run)\b")
WIDTHS = (80, 120)


@dataclass(frozen=True)
class Shell:
    """Where commands run, and what was on the screen by its width."""

    home: Path
    venv: Path
    prefix: Sequence[str] = ()
    transcripts: dict[int, list[str]] = field(default_factory=lambda: {w: [] for w in WIDTHS})

    def __call__(self, command: str) -> None:
        """Run a command in a terminal, and write down what is on the screen in the end."""
        assert len(str(self.home)) == len(HOME) == len(str(self.venv)) == len(VENV)
        argv = [*self.prefix, "env", *self._variables(), "bash", "-c", command]
        for columns in WIDTHS if LOOKS.match(command) else WIDTHS[:1]:
            printed, code = _in_terminal(argv, cwd=self.home, columns=columns)
            # Before lines wrap: paths and numbers of jobs may be longer or shorter.
            printed = printed.replace(str(self.home), HOME).replace(str(self.venv), VENV)
            printed = re.sub(r"\bjob \d+", "job 1", printed)
            printed = without_fleeting(without_version(printed))
            screen = normalize("\n".join(on_screen(printed, columns)).strip("\n"))
            ending = [f"[exit code {code}]"] if code else []
            shown = "\n".join(filter(None, [f"$ {command}", screen, *ending]))
            self.transcripts[columns].append(shown)

    def on(self, prefix: Sequence[str]) -> Shell:
        """Return the same home, seen from the login node of a cluster."""
        return Shell(self.home, self.venv, prefix)

    def save(self, name: str, text: str) -> None:
        (self.home / name).write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        """Edit a file, as a person would."""
        text = (self.home / name).read_text()
        assert old in text
        self.save(name, text.replace(old, new))
        self.transcripts[WIDTHS[0]].append(f"# {name}: {old!r} becomes {new!r}")

    def _variables(self) -> list[str]:
        path = f"{self.venv}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        wheel = ["PIP_NO_INDEX=1", f"PIP_FIND_LINKS={self.venv}/dist"]
        quiet = ["PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore", "PIP_QUIET=1"]
        names = [name for name in os.environ if re.match("PYTHON|HPCTRAIN", name)]
        # readline, which pytest imports, sets these two behind the back of os.environ.
        hidden = [f"--unset={name}" for name in (*names, "COLUMNS", "LINES")]
        return [*hidden, f"HOME={self.home}", f"PATH={path}", "TERM=xterm", *wheel, *quiet]


def _in_terminal(argv: list[str], *, cwd: Path, columns: int) -> tuple[str, int]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(argv, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = b""
    while True:
        try:
            printed += (part := os.read(ours, 65536))
        except OSError:  # EIO: the last process has left the terminal
            break
        if not part:
            break
    os.close(ours)
    return printed.decode(), process.wait(timeout=60)


def on_screen(printed: str, columns: int) -> list[str]:
    """Return the lines that a terminal shows in the end, wrapped as it wraps them."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|.", printed, re.DOTALL):
        if token == "\n":
            row += 1
        elif token == "\r":
            column = 0
        elif match := re.fullmatch(r"\x1b\[(\d*)A", token):
            row = max(0, row - int(match[1] or 1))
        elif token in ("\x1b[2K", "\x1b[K"):
            lines[row] = lines[row][: 0 if token == "\x1b[2K" else column]
        elif not token.startswith("\x1b"):
            if column == columns:
                row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
            line = lines[row].ljust(column)
            lines[row] = line[:column] + token + line[column + 1 :]
            column += 1
        lines += [""] * (row + 1 - len(lines))
    return [line.rstrip() for line in lines]


def without_version(printed: str) -> str:
    """Leave out what depends on the version of Python, and the lines of hpctrain's own code."""
    printed = printed.replace(f"/python3.{sys.version_info.minor}/", "/python3.x/")
    printed = re.sub(r"(?m)^ *[~^]+\r?\n", "", printed)
    return re.sub(r'(/hpctrain/\S+", line )(\d+)', lambda m: m[1] + "0" * len(m[2]), printed)


def without_fleeting(printed: str) -> str:
    """Leave out lines that only a slow machine shows, and torch's warning about host names."""
    fleeting = r"hpctrain: \S+ (starting|submitted as)\b|\[W\d+ [^\n]*\[c10d\]"
    return re.sub(rf"({fleeting})[^\n]*\n", "", printed)


def normalize(text: str) -> str:
    """Leave out times, pids, rates, job ids, the name of this machine, and how far a run came."""
    for pattern, instead in (
        # What ranks and nodes do at this moment.
        (r"(?m)^  (phases|speed|nodes|slowest)  [^\n]*\n", ""),
        (rf"\b{re.escape(os.uname().nodename)}\b", "laptop"),
        (r"\b\d+(\.\d+)? (ms|s|min|h|d)\b", "TIME"),
        (r"\b\d+(\.\d+)?/s\b", "RATE"),
        (r"\b(\d+-)?\d+:\d\d(:\d\d)?\b", "TIME"),
        (r"\bTIME TIME\b", "TIME"),
        (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
        (r"\b(process|pid) \d+", r"\1 PID"),
        (r"\bjob \d+", "job N"),
        (r"(?m)^\d+$", "N"),
        # The width of a column is that of its longest time.
        (r"(?<=\S) {3,}(?=\S)", "  "),
    ):
        text = re.sub(pattern, instead, text)
    return text


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, made by way of the source distribution, from a copy.

    Without a network, and nothing is written into the checkout.
    """
    copy = tmp_path_factory.mktemp("source")
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("hpctrain", "slurm_templates"):
        shutil.copytree(CHECKOUT / name, copy / name, ignore=skip)
    for name in ("pyproject.toml", "setup.cfg", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    # What a build front end calls; none is installed everywhere.
    hook = "from setuptools import build_meta; build_meta.build_sdist('dist')"
    subprocess.run(
        [sys.executable, "-c", hook], cwd=copy, check=True, timeout=120, stdout=subprocess.DEVNULL
    )
    (source,) = (copy / "dist").glob("hpctrain-*.tar.gz")
    subprocess.run([*pip, "--no-index", "-w", copy / "dist", source], check=True, timeout=120)
    (built,) = (copy / "dist").glob("hpctrain-*.whl")
    return built


@pytest.fixture(scope="session")
def environment(wheel: Path) -> Iterator[Path]:
    """An environment with all that this one has, but for hpctrain, and the wheel to install."""
    venv = Path(tempfile.mkdtemp(prefix="nc-", dir="/tmp"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (f"lib/{version}/site-packages", "lib", "bin"):
        for entry in (Path(sys.prefix) / folder).iterdir():
            link = venv / folder / entry.name
            if "hpctrain" not in entry.name and not link.exists():
                link.symlink_to(entry)
    # That of the other environment would install there.
    (venv / "bin" / "pip").unlink()
    (venv / "bin" / "pip").write_text(f'#!/bin/sh\nexec {venv}/bin/python -m pip "$@"\n')
    (venv / "bin" / "pip").chmod(0o755)
    (venv / "dist").mkdir()
    shutil.copy(wheel, venv / "dist")
    yield venv
    shutil.rmtree(venv)


@pytest.fixture
def newcomer(environment: Path) -> Iterator[Shell]:
    """A terminal in an empty home."""
    home = Path(tempfile.mkdtemp(prefix="nc-", dir="/tmp"))
    yield Shell(home, environment)
    shutil.rmtree(home)
