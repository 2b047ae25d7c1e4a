"""``growth``: a run that has lost a node grows when it is back; how long nobody trains.

From the last report of the smaller group to the first step of all ranks of the grown one, with
torch. Against the time from ``fit()`` to the first step of a script that is started for it, in an
allocation of as many nodes, and whose ranks import torch each. All are inside an allocation of a
virtual Slurm; the node is taken from the network, and put back.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge
from restart import first_step

NUM_RANKS = 4
NUM_NODES = 2
FACTOR, AIM = 0.25, 0.1
TIMEOUT_S = 180.0


def measure(arguments: Namespace) -> Iterator[Measured]:
    sys.path.insert(0, str(arguments.tree))
    from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode, missing_components

    spec = ClusterSpec(
        num_nodes=NUM_NODES,
        cpus_per_node=4,
        gpus_per_node=0,
        mode=best_mode(),
        # A node that Slurm itself finds to be down is taken from the job, and never comes back.
        slurmd_timeout_s=300,
    )
    # A node of a flat cluster has no network of its own.
    if lacks := missing_components(spec) or ("namespaces" if best_mode() == "flat" else ""):
        print(f"growth: left out, this machine lacks {lacks}", file=sys.stderr)
        return
    samples: dict[str, list[Sample]] = {"growth": [], "cold start": []}
    # Sockets of Slurm have short paths.
    with (
        tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as folder,
        VirtualCluster.start(spec, state_dir=Path(folder, "c")) as cluster,
    ):
        for number in range(arguments.rounds + (arguments.rounds > 1)):
            growth = _run(cluster, arguments, forks=True, once=False)
            cold = _run(cluster, arguments, forks=False, once=True)
            if arguments.say is not None:
                arguments.say(
                    f"growth round {number}: {growth.wall_s:.3f} s, cold {cold.wall_s:.3f} s"
                )
            # The first fills the page cache and writes bytecode.
            if number > 0 or arguments.rounds == 1:
                samples["growth"].append(growth)
                samples["cold start"].append(cold)
    yield judge(
        f"growth to {NUM_RANKS} ranks on {NUM_NODES} nodes",
        "growth",
        samples,
        [Goal(against="cold start", factor=factor) for factor in (FACTOR, AIM)],
        notes={"CPU": "of the ranks alone; a server of forked ranks has the import"},
    )


def _run(cluster: Any, arguments: Namespace, *, forks: bool, once: bool) -> Sample:
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as name:
        folder = Path(name)
        environment = child_environment(arguments.tree, cluster.environ)
        environment["HPCTRAIN_LAUNCHER"] = "allocation"
        environment["HPCTRAIN_FORK_SERVER"] = str(int(forks))
        shape = [f"--nodes={NUM_NODES}", f"--ntasks-per-node={NUM_RANKS // NUM_NODES}", "--no-kill"]
        words = [sys.executable, PROGRAMS / "grown_group.py", folder, *(["once"] if once else [])]
        with (folder / "said").open("w") as said:
            script = subprocess.Popen(
                ["salloc", "--quiet", *shape, *words],
                cwd=folder,
                env=environment,
                stdout=said,
                stderr=said,
            )
        try:
            if not once:
                _wait_for(folder, 1, NUM_RANKS, script)
                cluster.unplug(f"node{NUM_NODES}")
                _wait_for(folder, 2, NUM_RANKS // NUM_NODES, script)
                cluster.plug(f"node{NUM_NODES}")
            with suppress(subprocess.TimeoutExpired):
                script.wait(TIMEOUT_S)
            if script.returncode != 0:
                how = "did not end" if script.returncode is None else "failed"
                raise RuntimeError(f"the script {how}:\n{(folder / 'said').read_text()}")
        finally:
            cluster.plug(f"node{NUM_NODES}")
            script.kill()
            script.wait()
        if once:
            return first_step(folder, 1, float((folder / "fit").read_text()))
        left = [float(path.read_text()) for path in folder.glob("left-2-*")]
        return first_step(folder, 3, max(left))


def _wait_for(folder: Path, attempt: int, ranks: int, script: subprocess.Popen[bytes]) -> None:
    from hpctrain.testing.slurm.processes import wait_until

    wait_until(
        lambda: script.poll() is not None or len([*folder.glob(f"step-{attempt}-*")]) == ranks,
        what=f"attempt {attempt} to train",
        timeout_s=TIMEOUT_S,
    )
    if script.poll() is not None:
        raise RuntimeError(f"the script ended:\n{(folder / 'said').read_text()}")
