"""How often ranks ask the shared filesystem for files of Python, with a packed environment or not.

::

    python benchmarks/pack.py --python ENV/bin/python      # an environment that has hpctrain

Runs of one report start on a node of a virtual cluster. strace counts the calls of ranks, of what
they start, and of the process that they are forked from, for files of the environment or of its
interpreter. These are numbers and not seconds, so that it does not matter what else the machine
does; ``pack_start.py`` measures seconds. HPCTRAIN_FORK_SERVER=0 has each rank import for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode
from hpctrain.testing.slurm.processes import wait_until

FORMS = ("tar", "squashfs")
TIMEOUT_S = 300.0
# Calls that a parallel filesystem answers with its metadata server.
STRACE = ("strace", "-f", "-qq", "-s", "2000", "-e", "trace=%file,%process", "-e", "signal=none")
_CALL = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)")
_CHILD = re.compile(
    r"(?:clone3?|v?fork)\(?.* = (\d+)$|<\.\.\. (?:clone3?|v?fork) resumed.* = (\d+)$"
)
_SCRIPT = """
import sys
import hpctrain
from hpctrain import BackendConfig, DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.backend import OF_EVERY_RANK

class Config(BackendConfig):
    # And what this script is pickled with.
    preload = (*OF_EVERY_RANK, "hpctrain.trainer")

def train():
    from mpi4py import MPI

    hpctrain.report({"size": MPI.COMM_WORLD.size})

if __name__ == "__main__":
    ranks, pack, form = int(sys.argv[1]), sys.argv[2] or None, sys.argv[3]
    slurm = SlurmConfig(nodes=1, environment_pack=pack, environment_pack_dir="/dev/shm")
    DataParallelTrainer(
        train,
        backend_config=Config(),
        scaling_config=ScalingConfig(num_workers=ranks, slurm=slurm),
        run_config=RunConfig(storage_path="runs", name=f"run-{ranks}-{form}", verbose=0),
    ).fit()
"""


def count_calls(lines: Iterable[str], places: Iterable[str], *, ranks: int) -> tuple[int, int]:
    """Return how many files of some places ranks opened, and how many other calls they made."""
    lines = [*lines]
    children: dict[str, list[str]] = {}
    for line in lines:
        # A child may be quicker than the line by which its parent has made it.
        if (call := _CALL.match(line)) and (child := _CHILD.search(line)):
            children.setdefault(call[1], []).append(child[1] or child[2])
    seen: set[str] = set()
    wanted = tuple(f'"{place}/' for place in places)
    of_ranks: set[str] = set()
    opened = others = 0
    for line in lines:
        if (call := _CALL.match(line)) is None:
            continue
        process, name = call.groups()
        if name == "execve" and '"-m", "hpctrain.worker.main"' in line:
            # srun, or a proxy of mpiexec, has the same words in its own call.
            is_python = re.search(r'execve\("[^"]*/python[\d.]*", ', line)
            if is_python and "ENOENT" not in line:
                # A client of the fork server that is refused becomes the rank itself.
                seen.add(process)
                of_ranks.update(_with_descendants(process, children))
        # Without the words of a command.
        asked = line.partition(", [")[0]
        if process in of_ranks and any(place in asked for place in wanted):
            is_open = name.startswith("open") and "ENOENT" not in line
            opened, others = opened + is_open, others + (not is_open)
    if len(seen) != ranks:
        raise SystemExit(f"strace has seen {len(seen)} ranks start, and there were {ranks}")
    return opened, others


def _with_descendants(process: str, children: Mapping[str, Sequence[str]]) -> list[str]:
    found = [process]
    for each in found:
        # Those that are appended are looked at too. A number may have been used twice.
        found += [child for child in children.get(each, ()) if child not in found]
    return found


@contextmanager
def traced(cluster: Any, log: Path) -> Iterator[None]:
    """Write down the calls of all that the node starts."""
    (node,) = cluster.node_names
    daemon = cluster.parts.slurmd(node).process()
    tracer = cluster.popen_on(node, [*STRACE, "-o", str(log), "-p", str(daemon.pid)])
    looks = ["grep", "-q", "TracerPid:.*[1-9]", f"/proc/{daemon.pid}/status"]
    try:
        wait_until(lambda: cluster.run_on(node, looks).returncode == 0, what="strace", timeout_s=30)
        yield
    finally:
        # It detaches from slurmd, which goes on.
        os.killpg(tracer.pid, signal.SIGTERM)
        tracer.wait(30)


def run(argv: list[str], *, cwd: str, environment: dict[str, str]) -> str:
    """Return what a command prints."""
    done = subprocess.run(
        argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if done.returncode != 0:
        raise SystemExit(f"{argv} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter of an environment")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--json", type=Path, help="file for every number")
    arguments = parser.parse_args()
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    rows = []
    cpus = max(arguments.ranks)
    spec = ClusterSpec(num_nodes=1, cpus_per_node=cpus, gpus_per_node=0, mode=best_mode())
    # Paths of sockets must be short; nodes see the directories of this machine.
    with (
        tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as state,
        tempfile.TemporaryDirectory(prefix="hpctrain-bench-", dir="/var/tmp") as folder,
        VirtualCluster.start(spec, state_dir=Path(state)) as cluster,
    ):
        environment = {**inherited, **cluster.environ}
        files = {"shared": ""}
        for form in FORMS:
            files[form] = str(Path(folder, f"environment.{form}"))
            words = [arguments.python, "-m", "hpctrain.cli", "pack", "-o", files[form], "--json"]
            done = run([*words, "--format", form], cwd=folder, environment=environment)
            packed = json.loads(done)
        places = [place for place in (packed["prefix"], packed["base"]) if place]
        places += packed["editable"].values()
        Path(folder, "train.py").write_text(_SCRIPT)
        print(f"{packed['files']} files, {packed['bytes'] / 2**20:.0f} MiB, {places}")
        for ranks in arguments.ranks:
            for form, file in files.items():
                log = Path(folder, f"calls-{ranks}-{form}")
                with traced(cluster, log):
                    run(
                        [arguments.python, "train.py", str(ranks), file, form],
                        cwd=folder,
                        environment=environment,
                    )
                with log.open(errors="replace") as lines:
                    opened, others = count_calls(lines, places, ranks=ranks)
                row = {"ranks": ranks, "form": form, "opened": opened, "others": others}
                rows.append(row)
                print(
                    f"{ranks} ranks, {form:<9}{opened:6} files opened{others:8} other calls",
                    flush=True,
                )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    if any(row["form"] != "shared" and row["opened"] + row["others"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
