"""What runs cost the site: questions to Slurm's controller, and calls to the shared filesystem.

::

    python benchmarks/site_cost.py --json site_cost.json      # some minutes
    python benchmarks/site_cost.py --only files

Questions are counted on a virtual cluster: every command of Slurm that hpctrain runs passes through
a script in front of it on PATH, and counts as the RPCs that sdiag shows for it. Calls to the
filesystem are counted by strace on this machine. All are numbers and not seconds, so that it does
not matter what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from arms import PROGRAMS, describe_machine

from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status

# RPCs of a command, as sdiag counts them (measured with Slurm 22.05).
RPCS = {"sbatch": 1, "scancel": 1, "scontrol": 1, "sinfo": 2, "squeue": 2, "sacct": 1, "srun": 3}
HPCTRAIN = (sys.executable, "-m", "hpctrain.cli")
WINDOW_S = 125.0
RANKS = (2, 4, 8)
REPORTS = (2, 8)
# Calls that a parallel filesystem answers with its metadata server.
CALLS = "trace=%file,getdents64,fsync,fdatasync,ftruncate"
STRACE = ("strace", "-f", "-qq", "-y", "-s", "300", "-e", CALLS, "-e", "signal=none")
# The second half of a call that another process came between, and fstat of an open file.
_NOT_COUNTED = re.compile(r'\d+ +(<\.\.\. |newfstatat\(\d+<[^>]*>, "",|fstat\()')
# The executor writes the status every 2 s and with each checkpoint, and live.json every 5 s; it
# looks before each write of its own whether the directory is still that of the run, and the number
# still its own. The load decides how often.
_BY_TIME = (
    r'(/(\.?(status|live)\.json[.\da-f]*|\.executor-\d+|stop|plan\.json|logs/\d+/launcher\.out))?"'
)
# How ranks save in programs/reporting.py, and how many calls beside those for their files, whatever
# their number.
SAVING = {
    "none": "report()",
    "own": "checkpoint_dir()",
    "copies": "from_directory()",
    "states": "report_state()",
}
GOALS = {"none": 1.0, "copies": 24.0, "states": 24.0}
_OF_A_RANK = re.compile(r"rank-\d+\.txt|state-\d+-of-|loop-rank-")
_COUNTING = """#!/bin/sh
echo "$(date +%s.%N) $(uname -n) {name} $1" >> "$SITE_COST_LOG"
exec {program} "$@"
"""


@dataclass(frozen=True)
class Row:
    """One number, and how large it may be."""

    name: str
    measured: float
    goal: float | None = None

    @property
    def reached(self) -> bool:
        return self.goal is None or self.measured <= self.goal


class Desk:
    """A login node on which commands of Slurm are counted."""

    def __init__(self, cluster: Any, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._bin = folder / "bin"
        self._bin.mkdir()
        for name in RPCS:
            found = cluster.run_on("head", ["sh", "-c", f"command -v {name}"]).stdout.strip()
            if found:
                (self._bin / name).write_text(_COUNTING.format(name=name, program=found))
                (self._bin / name).chmod(0o755)

    def start(self, who: str, *argv: str) -> subprocess.Popen[str]:
        """Start a command as a user, whose commands of Slurm are counted as those of `who`."""
        variables = {
            "SITE_COST_LOG": str(self.folder / f"{who}.log"),
            "PATH": f"{self._bin}:{self.cluster.environ['PATH']}",
        }
        return self.cluster.popen_on(
            "head",
            argv,
            cwd=self.folder,
            environ=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(self, who: str, *argv: str) -> None:
        """Run such a command to its end."""
        if (status := self.start(who, *argv).wait(timeout=120)) != 0:
            raise SystemExit(f"{argv} ended with status {status}")

    def questions(self, who: str) -> list[tuple[float, str]]:
        """Return time and machine of each RPC that commands of `who` have made."""
        try:
            lines = (self.folder / f"{who}.log").read_text().splitlines()
        except FileNotFoundError:
            return []
        words = [line.split() for line in lines]
        return [
            (float(at), where)
            for at, where, name, *options in words
            # Answered by srun itself.
            if options != ["--mpi=list"]
            for _ in range(RPCS[name])
        ]


def measure_questions(say: Callable[[str], None]) -> Iterator[Row]:
    from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode

    spec = ClusterSpec(num_nodes=2, cpus_per_node=4, gpus_per_node=0, mode=best_mode())
    with tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as name:
        folder = Path(name)
        with VirtualCluster.start(spec, state_dir=folder / "c") as cluster:
            desk = Desk(cluster, folder)
            script = str(PROGRAMS / "reporting.py")
            submit = (*HPCTRAIN, "submit", script, str(folder / "runs"))
            desk.run("submit", *submit, "works", "2", "1000000", "0.2")
            at_desk = [where for _, where in desk.questions("submit") if where == "head"]
            yield Row("submit: to look at the partition, and to submit", len(at_desk))
            desk.run("hold", *submit, "waits", "2", "1", "0", "--hold")
            yield from _follow(desk, folder / "runs", say)
            yield from _list(desk, folder / "runs")


def _follow(desk: Desk, runs: Path, say: Callable[[str], None]) -> Iterator[Row]:
    """Count while several people follow a run that works and one that waits."""
    await_reports(runs / "works")
    say(f"following for {WINDOW_S:.0f} s")
    following = {
        f"{verb} a run that {run}": desk.start(f"{verb}-{run}", *HPCTRAIN, verb, str(runs / run))
        for verb in ("attach", "wait")
        for run in ("works", "waits")
    }
    began = time.time()
    time.sleep(WINDOW_S)
    for what, process in following.items():
        if process.poll() is not None:
            raise SystemExit(f"{what} ended with status {process.returncode}")
        verb, run = what.split()[0], what.split()[-1]
        asked = [at - began for at, _ in desk.questions(f"{verb}-{run}")]
        os.killpg(process.pid, 9)
        process.wait(timeout=30)
        yield Row(f"{what}: first minute", sum(at < 60 for at in asked), goal=2)
        yield Row(f"{what}: second minute", sum(60 <= at < 120 for at in asked), goal=1)
    inside = [at for at, where in desk.questions("submit") if where != "head"]
    started = sum(at <= began for at in inside)
    yield Row("the executor: to start agents and ranks", started)
    yield Row("the executor: a minute", (len(inside) - started) / (WINDOW_S / 60), goal=1)


def _list(desk: Desk, runs: Path) -> Iterator[Row]:
    for number in range(20):
        paths = RunPaths(runs / f"dead{number}")
        paths.root.mkdir()
        paths.plan.write_text("{}")
        status = RunStatus(
            name=paths.root.name, state=RunState.RUNNING, launcher="slurm", job_id=f"90{number}"
        )
        write_status(paths, status)
    desk.run("list", *HPCTRAIN, "list", str(runs))
    yield Row("list with 22 runs, 20 of them dead", len(desk.questions("list")), goal=2)
    desk.run("status", *HPCTRAIN, "status", str(runs / "works"))
    yield Row("status of a run", len(desk.questions("status")), goal=1)


def await_reports(run: Path) -> None:
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{run} makes no reports")
        time.sleep(0.2)


def measure_files(say: Callable[[str], None], sizes: Sequence[int] = RANKS) -> Iterator[Row]:
    """Count the calls of whole runs; what a report costs is the difference between two."""
    opened: dict[int, int] = {}
    for saving, what in SAVING.items():
        for ranks in sizes:
            counts = []
            for reports in REPORTS:
                say(f"strace: {ranks} ranks, {reports} reports, {saving}")
                with traced(ranks, reports, saving) as (lines, run):
                    counts.append(count_calls(lines, run))
                    if saving == "none":
                        opened[ranks] = count_modules(lines)
            files, others = (
                (many - few) / (REPORTS[1] - REPORTS[0]) for few, many in zip(*counts, strict=True)
            )
            yield Row(f"{what}, {ranks} ranks: calls for its file, a rank", files / ranks)
            goal = GOALS.get(saving)
            yield Row(f"{what}, {ranks} ranks: other calls, a report", others, goal=goal)
    if len(opened) < 2:
        return
    fewest, most = min(opened), max(opened)
    per_rank = (opened[most] - opened[fewest]) / (most - fewest)
    yield Row("modules that a start opens, a rank", per_rank)


@contextmanager
def traced(ranks: int, reports: int, saving: str) -> Iterator[tuple[list[str], str]]:
    """Run on this machine under strace; give the lines of its calls, and the run directory."""
    with tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as name:
        log, script = Path(name, "calls"), str(PROGRAMS / "reporting.py")
        argv = [sys.executable, script, name, "run", str(ranks), str(reports), "0", saving]
        environment: Mapping[str, str] = {**os.environ, "HPCTRAIN_LAUNCHER": "local"}
        done = subprocess.run(
            [*STRACE, "-o", log, *argv],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        if done.returncode != 0:
            raise SystemExit(f"{argv} ended with status {done.returncode}:\n{done.stdout}")
        yield log.read_text(errors="replace").splitlines(), f"{name}/run"


def count_calls(lines: list[str], run: str) -> tuple[int, int]:
    """Return how many calls there were for files that ranks saved, and how many others."""
    by_time = re.compile(re.escape(run) + _BY_TIME)
    counted = [
        line
        for line in lines
        if run in line and not _NOT_COUNTED.match(line) and not by_time.search(line)
    ]
    files = sum(_OF_A_RANK.search(line) is not None for line in counted)
    return files, len(counted) - files


def count_modules(lines: list[str]) -> int:
    """Return how many files of modules were opened."""
    # Python has looked into the directory before, so what it opens is there.
    opened = re.compile(r'openat\(.*\.(py|pyc|so|so\.[\d.]+)", O_RDONLY(?!.*ENOENT)')
    return sum(opened.search(line) is not None for line in lines)


ROWS = {"slurm": measure_questions, "files": measure_files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS, help="of the row 'files'")
    parser.add_argument("--json", type=Path, help="file for every number")
    arguments = parser.parse_args()
    rows = []
    measures = {**ROWS, "files": partial(measure_files, sizes=arguments.ranks)}
    for name in arguments.only:
        for row in measures[name](lambda line: print(line, file=sys.stderr, flush=True)):
            rows.append(row)
            goal = "" if row.goal is None else f"{row.goal:8.1f}"
            mark = "" if row.goal is None else ("  reached" if row.reached else "  MISSED")
            print(f"{row.name:<52}{row.measured:8.1f}{goal}{mark}", flush=True)
    if arguments.json is not None:
        content = {"machine": describe_machine(), "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    if not all(row.reached for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
