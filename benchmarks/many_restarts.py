"""Many restarts in a row inside one allocation: what grows?

::

    python benchmarks/many_restarts.py --restarts 64

Four ranks on two nodes of a virtual cluster, forked from a process on each node; in each attempt
one of them is killed. Printed and kept are the descriptors and the memory of the executor and of
the agents, and the number of processes, in each attempt once all ranks have begun.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from arms import PROGRAMS, child_environment, describe_machine

from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode
from hpctrain.testing.slurm.processes import wait_until

NUM_RANKS, NUM_NODES = 4, 2
TIMEOUT_S = 120.0
# Of a rank there are two processes: its client has its command, too.
OF_STEP = ("hpctrain.worker.main", "hpctrain.worker.fork_server")
NUM_OF_STEP = 2 * NUM_RANKS + NUM_NODES
MARK = "HPCTRAIN_MANY_RESTARTS"


def processes(mark: str) -> dict[int, list[str]]:
    """Return the command of each living process whose environment has a mark, by its pid."""
    found = {}
    for proc in Path("/proc").iterdir():
        try:
            if proc.name.isdigit() and mark in (proc / "environ").read_text(errors="replace"):
                is_alive = (proc / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                argv = (proc / "cmdline").read_text().split("\0")
                if is_alive and Path(argv[0]).name not in ("srun", "salloc"):
                    found[int(proc.name)] = argv
        except OSError:
            continue
    return found


def look(mark: str) -> dict[str, Any] | None:
    """Return what an attempt holds; None while processes of the last one are ending."""
    found = processes(mark)
    if sum(any(word in argv for word in OF_STEP) for argv in found.values()) != NUM_OF_STEP:
        return None
    held: dict[str, Any] = {"processes": len(found)}
    for name, word in (
        ("executor", str(PROGRAMS / "dying_ranks.py")),
        ("agents", "hpctrain.execute.agent"),
    ):
        pids = [pid for pid, argv in found.items() if any(a.endswith(word) for a in argv)]
        held[f"{name}_descriptors"] = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        held[f"{name}_mib"] = round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--restarts", type=int, default=64)
    parser.add_argument("--json", type=Path, help="file for every number")
    arguments = parser.parse_args()
    machine, rows = describe_machine(), []
    spec = ClusterSpec(num_nodes=NUM_NODES, cpus_per_node=4, gpus_per_node=0, mode=best_mode())
    with (
        # Paths of sockets must be short.
        tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as state,
        tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder,
        VirtualCluster.start(spec, state_dir=Path(state)) as cluster,
    ):
        environment = child_environment(Path(__file__).resolve().parents[1], cluster.environ)
        environment |= {"HPCTRAIN_LAUNCHER": "allocation", MARK: folder}
        words = [PROGRAMS / "dying_ranks.py", NUM_RANKS, NUM_NODES, folder, arguments.restarts]
        shape = [f"--nodes={NUM_NODES}", f"--ntasks-per-node={NUM_RANKS // NUM_NODES}"]
        process = subprocess.Popen(
            ["salloc", "--quiet", *shape, sys.executable, *map(str, words)],
            cwd=folder,
            env=environment,
        )
        try:
            for attempt in range(1, arguments.restarts + 2):
                here = f"here-{attempt}-*"
                wait_until(
                    lambda here=here: len(list(Path(folder).glob(here))) == NUM_RANKS,
                    what=f"attempt {attempt}",
                    timeout_s=TIMEOUT_S,
                )
                held: dict[str, Any] = {}
                wait_until(
                    lambda held=held: bool(held.update(look(f"{MARK}={folder}") or {}) or held),
                    what="the end of the last ranks",
                    timeout_s=TIMEOUT_S,
                )
                forked = len(list(Path(folder).glob(f"here-{attempt}-*-True")))
                rows.append({"attempt": attempt, "forked": forked, **held})
                print(rows[-1], flush=True)
                Path(folder, f"go-{attempt}").touch()
            if process.wait(TIMEOUT_S) != 0:
                raise SystemExit(f"the run ended with status {process.returncode}")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(TIMEOUT_S)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
