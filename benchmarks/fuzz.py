"""Damage the files of run directories at random, and see that no verb is misled by it.

Of a finished, a failed and a running run, one file at a time is cut, overwritten, replaced by a
FIFO or a device, and so on. Then verbs of ``hpctrain``, `Result` and ``fit()`` look at the run, in
this process. None may show a traceback or hang, and where one says something else than before, it
says that something is damaged.

    python benchmarks/fuzz.py --cases 10000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import typer

import hpctrain
from hpctrain import Checkpoint, Result, RunConfig, ScalingConfig
from hpctrain.cli.main import app
from hpctrain.errors import HpctrainError
from hpctrain.execute.process import process_start_time
from hpctrain.trainer import DataParallelTrainer

_APP = typer.main.get_command(app)
LONGEST_S = 10.0
"""For one verb; what takes longer hangs."""
STATES = ("finished", "failed", "running")
# By which an output says that something is not as it was.
_WORDS = re.compile(
    r"damaged|too large|display ends|cannot be|altered|torn|missing|lost|is not a run|not what"
    r"|no such log|no log|unreadable|set aside|has no|does not say|not known|no usable|no run"
    r"|differs|reads up to"
)
# What differs from one look to the next.
_TIMES = re.compile(
    r"(\d+:)?\d+:\d\d|\b\d+(\.\d+)? (s|min|h|days)\b"
    r"|\d{4}-\d\d-\d\d|\"(updated|reported)_at\": [^\n]*|process \d+"
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What went wrong."""

    case: int
    state: str
    file: str
    mutation: str
    verb: str
    kind: str
    """``traceback``, ``hang`` or ``silent``."""
    detail: str

    def __str__(self) -> str:
        return (
            f"case {self.case}: {self.mutation} of {self.file} of the {self.state} run, "
            f"{self.verb}: {self.kind}\n{self.detail}"
        )


class Runs:
    """A finished, a failed and a running run, which can be had undamaged again and again."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage
        self._files: dict[str, dict[str, bytes]] = {}
        # The executor of the running one: it lives, and does nothing.
        self._executor = subprocess.Popen(["sleep", "infinity"])
        for state in STATES:
            self._begin(state)

    def close(self) -> None:
        """End what was started."""
        self._executor.kill()
        self._executor.wait()

    def root(self, state: str) -> Path:
        """Return the directory of a run."""
        return self.storage / state

    def files(self, state: str) -> Mapping[str, bytes]:
        """Return the files of a run as they were, by path."""
        return self._files[state]

    def restore(self, state: str) -> None:
        """Make a run as it was. The directory stays the same one."""
        root, files = self.root(state), self._files[state]
        folders = {str(parent) for name in files for parent in Path(name).parents}
        for path in sorted(root.rglob("*"), reverse=True):
            name = str(path.relative_to(root))
            if path.is_dir() and not path.is_symlink():
                if name not in folders:
                    shutil.rmtree(path)
            elif name not in files or not _holds(path, files[name]):
                path.unlink()
        for name, content in files.items():
            path = root / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def trainer(self, state: str) -> DataParallelTrainer:
        """Return the trainer of a run."""
        return DataParallelTrainer(
            _train,
            train_loop_config={"state": state, "root": str(self.root(state))},
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(name=state, storage_path=str(self.storage), verbose=0),
        )

    def _begin(self, state: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(RuntimeError):
            self.trainer(state).fit()
        root = self.root(state)
        beside = root.with_name(f".{state}")
        if beside.exists():
            shutil.rmtree(root / "checkpoints")
            shutil.copytree(beside, root, dirs_exist_ok=True)
            shutil.rmtree(beside)
        log = root / "logs" / "1" / "rank-00000.out"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("begun\nloss 1.0\n\x1b[31mred\x1b[0m\n")
        if state == "running":
            status = json.loads((root / "status.json").read_bytes())
            status |= {"owner_pid": self._executor.pid}
            status |= {"reports": 2, "metrics": {"loss": 0.5}, "phase": ""}
            status |= {"owner_start": process_start_time(self._executor.pid)}
            (root / "status.json").write_text(json.dumps(status))
        self._files[state] = {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.name != "owner"
        }


def _holds(path: Path, content: bytes) -> bool:
    """Return whether a regular file has this content."""
    entry = path.lstat()
    is_alike = stat.S_ISREG(entry.st_mode) and entry.st_size == len(content)
    return is_alike and path.read_bytes() == content


def _train(config: dict[str, Any]) -> int:
    for step in range(2):
        with hpctrain.checkpoint_dir() as folder:
            (Path(folder) / "model.txt").write_text(f"weights {step}")
            hpctrain.report({"loss": 1 / (step + 1)}, checkpoint=Checkpoint(folder))
    if config["state"] == "failed":
        raise RuntimeError("on purpose")
    if config["state"] == "running":
        root = Path(config["root"])
        shutil.copytree(root, root.with_name(".running"))
    return 7


def _cut(rng: random.Random, path: Path, content: bytes) -> None:
    path.write_bytes(content[: rng.randrange(max(1, len(content)))])


def _empty(rng: random.Random, path: Path, content: bytes) -> None:
    path.write_bytes(b"")


def _flip(rng: random.Random, path: Path, content: bytes) -> None:
    changed = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 1, 20))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    path.write_bytes(changed)


def _overwrite(rng: random.Random, path: Path, content: bytes) -> None:
    words = (b"\xff", b"\0" * 16, b"\x1b]0;title\x07\x1b[2J", b"NaN", b"1e999", b"[" * 3000, b"\n")
    at, word = rng.randrange(len(content) + 1), rng.choice(words)
    path.write_bytes(content[:at] + word + content[at + rng.choice((0, len(word))) :])


def _set_value(rng: random.Random, path: Path, content: bytes) -> None:
    """Give a field of a JSON object a value of another kind."""
    lines = content.splitlines() if path.suffix == ".jsonl" else [content]
    at = rng.randrange(max(1, len(lines)))
    odd = (None, True, -1, 10**30, 1.5, float("nan"), "", "--user=root", [], {}, [[1]], "../../x")
    try:
        value = json.loads(lines[at])
        value[rng.choice(sorted(value))] = rng.choice(odd)
    except (ValueError, TypeError, IndexError):
        return _flip(rng, path, content)
    lines[at] = json.dumps(value).encode()
    path.write_bytes(b"\n".join(lines) + b"\n" * content.endswith(b"\n"))


def _remove(rng: random.Random, path: Path, content: bytes) -> None:
    path.unlink()


def _fifo(rng: random.Random, path: Path, content: bytes) -> None:
    path.unlink()
    os.mkfifo(path)


def _device(rng: random.Random, path: Path, content: bytes) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _directory(rng: random.Random, path: Path, content: bytes) -> None:
    path.unlink()
    path.mkdir()


def _enlarge(rng: random.Random, path: Path, content: bytes) -> None:
    # Sparse: it takes no disk, and would take all memory. A log is printed whatever its size.
    os.truncate(path, 2**20 if path.suffix == ".out" else 2**40)


MUTATIONS: tuple[Callable[[random.Random, Path, bytes], None], ...] = (
    *(_cut, _cut, _flip, _flip, _flip, _overwrite, _overwrite, _set_value, _set_value, _set_value),
    *(_empty, _remove, _fifo, _device, _directory, _enlarge),
)


def _command(*words: str) -> Callable[[Runs, str], str]:
    def run(runs: Runs, state: str) -> str:
        # {}: the run. Nothing is followed for longer than it takes.
        given = [word.format(run=runs.root(state), storage=runs.storage) for word in words]
        code = _APP.main(given, standalone_mode=False)
        return f"exit {code}\n" if code else ""

    return run


def _result(runs: Runs, state: str) -> str:
    result = Result.from_path(runs.root(state))
    said = [repr(result.error), result.state, result.metrics, result.metrics_history, result.nodes]
    said += [[(a.attempt, a.cause) for a in result.attempts], result.job_ids]
    checkpoint = result.checkpoint
    said += [checkpoint and checkpoint.path.name, [m for _, m in result.best_checkpoints]]
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            said.append(Path(folder).name)
        said.append(checkpoint.get_metadata())
    # Not its `return_value`, which is a pickle: only its owner's own is opened.
    return "\n".join(map(str, said))


def _fit(runs: Runs, state: str) -> str:
    try:
        result = runs.trainer(state).fit()
    except RuntimeError as error:
        if str(error) != "on purpose":
            raise
        return "failed on purpose"
    return f"{result.state} {result.metrics}"


VERBS: Mapping[str, Callable[[Runs, str], str]] = {
    "status": _command("status", "{run}"),
    "status --json": _command("status", "{run}", "--json"),
    "list": _command("list", "{storage}"),
    "history": _command("history", "{run}"),
    "history --json": _command("history", "{run}", "--json"),
    "checkpoints": _command("checkpoints", "{run}"),
    "checkpoints --verify": _command("checkpoints", "{run}", "--verify"),
    "logs": _command("logs", "{run}"),
    "logs -n 1": _command("logs", "{run}", "-n", "1"),
    "wait": _command("wait", "{run}", "--timeout", "0"),
    "cancel --dry-run": _command("cancel", "{run}", "--now", "--dry-run"),
    "cancel --now": _command("cancel", "{run}", "--now"),
    "Result": _result,
}
_OF_FINAL: Mapping[str, Callable[[Runs, str], str]] = {
    "attach": _command("attach", "{run}"),
    "fit": _fit,
}


class _Hang(BaseException):
    pass


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def look(runs: Runs, state: str, verb: str) -> tuple[str | None, str]:
    """Let a verb look at a run; return what went wrong, if anything, and what it printed."""
    act = {**VERBS, **_OF_FINAL}[verb]
    out = io.StringIO()
    problem = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            with _time_limit():
                print(act(runs, state))
        except _Hang:
            problem = "hang"
            traceback.print_exc()
        except SystemExit as ended:
            print(f"exit {ended.code}")
        except HpctrainError as error:
            print(f"{type(error).__name__}: {error}")
        except BaseException:
            problem = "traceback"
            traceback.print_exc()
    said = out.getvalue()
    # Colours of a log are left as they are, whichever they became.
    if problem is None and "\x1b" in re.sub(r"\x1b\[[\d;]*m", "", said):
        problem = "terminal escape"
    # It is shown for some seconds after a report.
    said = re.sub(r"\n *speed [^\n]*", "", said)
    # Columns are as wide as their times, and runs of the same second in any order.
    said = _TIMES.sub(
        "T", re.sub(" +", " ", re.sub(r"(reports +\d+), [\d.:]+( s| min| h)? ago", r"\1", said))
    )
    return problem, "\n".join(sorted(said.splitlines())) if verb == "list" else said


def fuzz(runs: Runs, *, cases: int, seed: int, verbs_per_case: int = 3) -> Iterator[Finding]:
    """Damage a file of a run, so many times, and yield what went wrong."""
    undamaged = {}
    for state in STATES:
        for verb in (*VERBS, *(_OF_FINAL if state != "running" else ())):
            runs.restore(state)
            problem, undamaged[state, verb] = look(runs, state, verb)
            if problem is not None:
                yield Finding(
                    case=-1, state=state, file="-", mutation="nothing", verb=verb, kind=problem,
                    detail=undamaged[state, verb],
                )  # fmt: skip
            runs.restore(state)
    for case in range(cases):
        rng = random.Random(f"{seed} {case}")
        state = rng.choice(STATES)
        name, content = rng.choice(sorted(runs.files(state).items()))
        mutate = rng.choice(MUTATIONS)
        known = [*VERBS, *(_OF_FINAL if state != "running" else ())]
        for verb in rng.sample(known, verbs_per_case):
            runs.restore(state)
            path = runs.root(state) / name
            mutate(random.Random(f"{seed} {case}"), path, content)
            is_value = _is_whole(path)
            kind, said = look(runs, state, verb)
            differs = said != undamaged[state, verb]
            if kind is None and differs and not is_value and not _WORDS.search(said):
                kind = "silent"
            if kind is not None:
                yield Finding(
                    case=case, state=state, file=name, mutation=mutate.__name__, verb=verb,
                    kind=kind, detail=f"was:\n{undamaged[state, verb]}\nis:\n{said}",
                )  # fmt: skip
        runs.restore(state)


def _is_whole(path: Path) -> bool:
    """Return whether a file is JSON, or a log, with another value in it.

    These have no digest, so that nobody can tell.
    """
    if path.suffix == ".out":
        # Runs in existing processes have none.
        return not path.is_symlink() and (path.is_file() or not path.exists())
    if path.suffix not in (".json", ".jsonl") or "checkpoints" in path.parts:
        return False
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 2**20:
        return False
    content = path.read_bytes()
    try:
        for line in content.splitlines() if path.suffix == ".jsonl" else [content]:
            json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return False
    return True


def main() -> int:
    """Fuzz, and print what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=20, help="findings after which it ends")
    options = parser.parse_args()
    found = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hpctrain-fuzz-") as folder:
        runs = Runs(Path(folder))
        try:
            for finding in fuzz(runs, cases=options.cases, seed=options.seed):
                print(finding, flush=True)
                found += 1
                if found >= options.most:
                    break
        finally:
            runs.close()
    print(f"{found} findings in {time.monotonic() - began:.0f} s")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
