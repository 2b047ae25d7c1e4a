"""`Trial`: one life of a script, from its start to its end, with or without faults."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hpctrain import environ
from hpctrain.testing.chaos import injector
from hpctrain.testing.chaos.fault import Entry, Fault, read_trace
from hpctrain.testing.chaos.leftovers import Surroundings, filesystem, surround
from hpctrain.testing.chaos.outcome import RunOutcome, is_finished, read_outcome
from hpctrain.testing.chaos.processes import await_end
from hpctrain.testing.chaos.scene import Act, Scene, Script, job_ids
from hpctrain.testing.chaos.sweep_outcome import has_ended, read_sweep
from hpctrain.testing.slurm import VirtualCluster

__all__ = ["Script", "Trial", "TrialResult"]
_POLL_S = 0.02
_END_PATIENCE_S = 15.0
_START_PATIENCE_S = 60.0
_EMPTY_RUN = """
import sys
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig

nodes = int(sys.argv[1])
DataParallelTrainer(
    lambda: None,
    scaling_config=ScalingConfig(num_workers=nodes, slurm=SlurmConfig(nodes=nodes)),
    run_config=RunConfig(name="empty", storage_path=sys.argv[2]),
).fit()
"""
_FOREIGN_PREFIXES = ("SLURM_", "SBATCH_", "HPCTRAIN_")


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """Result of a trial."""

    outcome: dict[str, RunOutcome]
    trace: list[Entry]
    faults: tuple[Fault, ...]
    came_about: tuple[bool, ...]
    """Of each fault, whether its point was reached, and the harness has done its part there."""
    damaged: dict[str, float]
    starts: int
    """How often the script was started: more than once where a run needs a human."""
    troubles: tuple[str, ...]
    """What is wrong by itself: a deadline passed, processes left over, an act that failed."""
    seconds: float
    log: Path

    @property
    def attempts(self) -> int:
        """How often ranks were started."""
        return sum(len(run.first_reports) for run in self.outcome.values())


class Trial:
    """One life of a script.

    Parameters
    ----------
    folder
        New folder for everything of the trial.
    script
        What to run.
    cluster
        Where its runs become jobs; None runs the ranks on this machine.
    faults
        What is to happen.
    acts
        How to bring about faults that are announced, by their kind.
    storage_mib
        Size of a filesystem of its own for the storage; needs root. None: no filesystem of its own.
    """

    def __init__(
        self,
        folder: Path,
        *,
        script: Script,
        cluster: VirtualCluster | None = None,
        faults: Sequence[Fault] = (),
        acts: dict[str, Act] | None = None,
        storage_mib: int | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self._script = script
        self._cluster = cluster
        self._faults = tuple(faults)
        self._acts = acts or {}
        self._storage_mib = storage_mib
        self._troubles: list[str] = []
        self._damaged: dict[str, float] = {}
        self._acting: list[threading.Thread] = []
        self._log = self.folder / "script.out"
        self._job_name = f"chaos-{secrets.token_hex(4)}"

    def run(self, *, timeout_s: float, max_starts: int = 4, pause_s: float = 0.0) -> TrialResult:
        """Run the script until all its runs are finished.

        Not collective.

        Parameters
        ----------
        timeout_s
            For everything together. What is left is ended then.
        max_starts
            How often the script is started: a run that was stopped resumes at the next start.
        pause_s
            Seconds between two starts. What outlives the script goes on in them.
        """
        self._prepare()
        began = time.monotonic()
        deadline = began + timeout_s
        starts = 0
        with ExitStack() as stack:
            surroundings = stack.enter_context(surround(cluster=self._cluster))
            if self._storage_mib is not None:
                stack.enter_context(filesystem(self.folder / "storage", self._storage_mib))
            while starts < max_starts:
                if starts:
                    time.sleep(pause_s)
                starts += 1
                if not self._run_once(surroundings, deadline):
                    self._troubles.append(f"not at its end after {timeout_s:.0f} s")
                    break
                if self._is_over():
                    break
            seconds = time.monotonic() - began
            for thread in self._acting:
                thread.join(timeout=60.0)
            self._troubles += self._unanswered()
            self._end_processes()
            of_submissions = (self.folder / "storage").glob("*/slurm")
            places = [self._script.cwd, *of_submissions]
            left = surroundings.leftovers(places)
            if left and self._was_all_killed():
                # No process was left to remove it, and the sweep may not need that node again.
                self._start_on_all_nodes(surroundings)
                left = surroundings.leftovers(places)
            self._troubles += [f"left behind: {path}" for path in left]
            outcome = self._read()
        return TrialResult(
            outcome=outcome,
            trace=read_trace(self.folder / "trace.jsonl"),
            faults=self._faults,
            came_about=tuple(self._came_about(number) for number in range(len(self._faults))),
            damaged=self._damaged,
            starts=starts,
            troubles=tuple(self._troubles),
            seconds=seconds,
            log=self._log,
        )

    def _came_about(self, number: int) -> bool:
        is_announced = self._faults[number].act == injector.ANNOUNCE
        done = "answered" if is_announced else "claimed"
        return (self.folder / done / str(number)).exists()

    def _unanswered(self) -> list[str]:
        numbers = sorted(os.listdir(self.folder / injector.UNANSWERED), key=int)
        return [f"not brought about: {self._faults[int(number)]}" for number in numbers]

    def _was_all_killed(self) -> bool:
        """Return whether all processes of a sweep were killed on all nodes at the same time."""
        kinds = [fault.kind for n, fault in enumerate(self._faults) if self._came_about(n)]
        return bool(self._cluster is not None and self._script.sweep and "kill-all" in kinds)

    def _start_on_all_nodes(self, surroundings: Surroundings) -> None:
        """Run an empty function on each node: the next start removes what the dead have left."""
        assert self._cluster is not None
        nodes = str(len(self._cluster.node_names))
        environment = self._environment(surroundings.tmp)
        # No faults, and no trace.
        _, *path = environment.pop("PYTHONPATH").split(os.pathsep)
        if path:
            environment["PYTHONPATH"] = os.pathsep.join(path)
        storage = str(self.folder / "next-start")
        script = [sys.executable, "-c", _EMPTY_RUN, nodes, storage]
        argv = ["salloc", "--quiet", "--exclusive", f"--nodes={nodes}", *script]
        try:
            with open(self._log, "ab") as log:
                subprocess.run(
                    surroundings.command(argv),
                    check=True,
                    cwd=self._script.cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=_START_PATIENCE_S,
                )
        except subprocess.SubprocessError as error:
            self._troubles.append(f"the next start: {error}")

    def _prepare(self) -> None:
        for name in ("storage", "claimed", "announced", "answered", injector.UNANSWERED):
            (self.folder / name).mkdir(parents=True)
        shutil.copy(injector.__file__, self.folder / "sitecustomize.py")
        settings = {
            "script": str(self._script.path),
            "local": self._cluster is None and not self._script.sweep,
            "faults": [fault.to_json(number) for number, fault in enumerate(self._faults)],
        }
        (self.folder / "faults.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")

    def _environment(self, tmp: Path) -> dict[str, str]:
        inherited = environ.environment()
        kept = {k: v for k, v in inherited.items() if not k.startswith(_FOREIGN_PREFIXES)}
        path = os.pathsep.join(filter(None, [str(self.folder), kept.get("PYTHONPATH")]))
        ours = {"PYTHONPATH": path, "HPCTRAIN_LAUNCHER": "local", "TMPDIR": str(tmp)}
        ours["CHAOS_STORAGE"] = str(self.folder / "storage")
        if self._cluster is not None and self._script.sweep:
            ours.update(self._cluster.environ)
            # By the allocation that it is in.
            ours["HPCTRAIN_LAUNCHER"] = ""
        elif self._cluster is not None:
            ours["HPCTRAIN_LAUNCHER"] = "slurm"
            # Of the partitions of the virtual cluster the one whose jobs can be preempted.
            ours["HPCTRAIN_SLURM"] = json.dumps({"partition": "low"})
            ours.update(self._cluster.environ)
        return {**kept, **ours}

    def _run_once(self, surroundings: Surroundings, deadline: float) -> bool:
        """Run the script once; return whether it ended in time."""
        argv = [sys.executable, str(self._script.path), *self._script.args]
        if self._cluster is not None and self._script.sweep:
            options = [f"--nodes={len(self._cluster.node_names)}", f"--job-name={self._job_name}"]
            argv = ["salloc", "--quiet", "--no-kill", "--exclusive", *options, *argv]
        with open(self._log, "ab") as log:
            log.write(f"$ {shlex.join(argv)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                surroundings.command(argv),
                cwd=self._script.cwd,
                env=self._environment(surroundings.tmp),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    return False
                self._answer_announcements()
                time.sleep(_POLL_S)
            return True
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _answer_announcements(self) -> None:
        for entry in os.scandir(self.folder / "announced"):
            # One announcement is answered once.
            os.rename(entry.path, self.folder / f"acting-{entry.name}")
            fault = self._faults[int(entry.name)]
            thread = threading.Thread(target=self._act, args=(entry.name, fault), daemon=True)
            self._acting.append(thread)
            thread.start()

    def _act(self, number: str, fault: Fault) -> None:
        scene = Scene(
            folder=self.folder,
            script=self._script,
            cluster=self._cluster,
            fault=fault,
            damaged=self._damaged,
        )
        try:
            act = self._acts[fault.kind](scene)
            next(act)
            (self.folder / "answered" / number).mkdir()
            next(act, None)
        except Exception as error:
            self._troubles.append(f"{fault}: {type(error).__name__}: {error}")

    def _runs(self) -> list[Path]:
        runs = (self.folder / "storage" / self._script.sweep).glob("*")
        return [path for path in runs if path.is_dir()]

    def _read(self) -> dict[str, RunOutcome]:
        storage = self.folder / "storage"
        if self._script.sweep:
            return read_sweep(storage / self._script.sweep)
        return read_outcome(storage)

    def _is_over(self) -> bool:
        if self._script.sweep:
            return has_ended(self.folder / "storage" / self._script.sweep)
        return is_finished(self._read())

    def _end_processes(self) -> None:
        if self._cluster is not None and self._script.sweep:
            # An allocation whose salloc was killed holds all nodes, which the next trial waits for.
            self._cluster.run_on("head", ["scancel", f"--name={self._job_name}"])
        elif self._cluster is not None and self._troubles:
            # Slurm would start a job again whose processes die.
            self._cluster.run_on("head", ["scancel", *job_ids(self._runs())])
        script = str(self._script.path)
        left = await_end(self.folder, script=script, timeout_s=_END_PATIENCE_S)
        for process in left:
            self._troubles.append(f"left running: {process.command} ({process.pid})")
            process.send(signal.SIGKILL)
