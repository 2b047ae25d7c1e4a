"""``submit``: from submitting to the first line of the training function, on a virtual Slurm."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from arms import PROGRAMS, Arm, Goal, Measured, Row, Sample, alternate, child_environment

NUM_NODES = 4
FACTOR, AIM = 1.0, 0.7
TIMEOUT_S = 120.0


def measure(arguments: Namespace) -> Iterator[Measured]:
    sys.path.insert(0, str(arguments.tree))
    from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode, missing_components

    spec = ClusterSpec(num_nodes=NUM_NODES, cpus_per_node=4, gpus_per_node=0, mode=best_mode())
    if missing := missing_components(spec):
        print(f"submit: left out, this machine lacks {missing}", file=sys.stderr)
        return
    # Sockets of Slurm have short paths.
    with tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as folder:
        state_dir = Path(folder, "c")
        with VirtualCluster.start(spec, state_dir=state_dir) as cluster:
            row = Row(
                name=f"submit {NUM_NODES} nodes",
                ours=Arm(name="fit()", measure=lambda: _ours(cluster, arguments, "fit")),
                others=[
                    Arm(name="sbatch, srun", measure=lambda: _bare(cluster, arguments)),
                    Arm(name="python train.py", measure=lambda: _ours(cluster, arguments, "start")),
                ],
                goals=[Goal(against="sbatch, srun", factor=factor) for factor in (FACTOR, AIM)],
            )
            yield alternate(row, rounds=arguments.rounds, say=arguments.say)


def _ours(cluster: Any, arguments: Namespace, begin: str) -> Sample:
    def script(folder: Path) -> Sequence[str]:
        return [sys.executable, str(PROGRAMS / "submitted.py"), str(NUM_NODES), str(folder)]

    return _time_to_first_line(cluster, arguments, script, begin)


def _bare(cluster: Any, arguments: Namespace) -> Sample:
    def script(folder: Path) -> Sequence[str]:
        program = shlex.quote(str(PROGRAMS / "stamp.py"))
        batch = folder / "bare.sbatch"
        srun = f"srun --mpi=pmi2 -N{NUM_NODES} -n{NUM_NODES} {sys.executable} {program} {folder}"
        batch.write_text(f"#!/bin/sh\nexec {srun}\n")
        sbatch = f"sbatch -W -N{NUM_NODES} -n{NUM_NODES} -o {folder}/bare.out {batch}"
        return ["sh", "-c", f"date +%s.%N > {folder}/fit; exec {sbatch}"]

    return _time_to_first_line(cluster, arguments, script, "fit")


def _time_to_first_line(
    cluster: Any, arguments: Namespace, script: Callable[[Path], Sequence[str]], begin: str
) -> Sample:
    """Run a script where users log in; return the time until its first rank's first line.

    Both ends are stamps of the same clock, which all nodes share.
    """
    _await_idle(cluster)
    with tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as name:
        folder = Path(name)
        environment = child_environment(arguments.tree, {"HPCTRAIN_LAUNCHER": "slurm"})
        path = f"{cluster.environ['PATH']}:{os.environ['PATH']}"
        argv = cluster.login_command(script(folder), cwd=folder)
        log = folder / "login.log"
        with open(log, "w") as output:
            (folder / "start").write_text(f"{time.time():.6f}")
            done = subprocess.run(
                argv,
                env={**environment, **cluster.environ, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
            )
        if done.returncode != 0 or not (folder / "first").exists():
            outputs = [p.read_text() for p in (log, *folder.rglob("*.out"))]
            raise SystemExit(f"{argv} ended with status {done.returncode}:\n" + "\n".join(outputs))
        stamps = [float((folder / stamp).read_text()) for stamp in (begin, "first")]
    return Sample(stamps[1] - stamps[0])


def _await_idle(cluster: Any) -> None:
    """Wait until no job is left: a node that still cleans up takes no new one."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        jobs = cluster.run_on("head", ["squeue", "--noheader"]).stdout.strip()
        if not jobs and all(node.state == "idle" for node in cluster.status().nodes):
            return
        time.sleep(0.2)
    raise SystemExit("the virtual cluster does not become idle")
