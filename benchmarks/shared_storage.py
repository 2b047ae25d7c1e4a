"""What a start asks of the filesystem that the environment is on, and how long it waits for it.

::

    python benchmarks/shared_storage.py --python ENV/bin/python    # one that has hpctrain

On a virtual cluster a filesystem that counts is mounted over the environment, its interpreter and
hpctrain (`programs/counting_filesystem.py`), for each node a client of its own that keeps nothing
of an earlier run. It answers DELAY_MS late, as a parallel filesystem does that others use too, and
keeps names and attributes for three seconds, as an NFS client does (acregmin). Bytes do not depend
on what else the machine does, nor do requests, but that a start that takes longer asks for some
names again. ``PATH`` should have no directory of the environment: the shell looks there, too.

- ``start``: ranks of one report, with a checkpoint, on one node. Each imports for itself; or they
  are forked from a process that has imported once; or the environment is packed.
- ``pack``: bytes of a packed environment that are read from the filesystem it is on, by the node of
  the script and all others. sbcast copies it to the nodes; or, as where sbcast does not serve, they
  get it from one another (``tree``); or each node reads it, as where that does not serve either.

As root, for mounts, with the commands of Slurm. ``benchmarks/pack.py`` counts system calls.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from arms import PROGRAMS, describe_machine
from pack import run

from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode
from hpctrain.testing.slurm.processes import wait_until

CACHED_S = 3
_REFUSES = "echo 'there is no sbcast here' >&2; exit 1"
HEAD = "head"
ARMS = {"each imports": "0", "forked": "1", "packed": "1"}
METADATA = ("lookup", "getattr", "open", "opendir", "readdir", "readlink", "access", "statfs")
_SCRIPT = """
import sys
import hpctrain
from hpctrain import (
    BackendConfig, Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig,
)
from hpctrain.backend import OF_EVERY_RANK

class Config(BackendConfig):
    # And what this script is pickled with.
    preload = (*OF_EVERY_RANK, "hpctrain.trainer")

def train():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    hpctrain.report(
        {"size": world.size}, Checkpoint.from_dict({"step": 1}) if world.rank == 0 else None
    )

if __name__ == "__main__":
    name, ranks, nodes, pack = sys.argv[1:]
    # Each virtual node has its own.
    slurm = SlurmConfig(
        nodes=int(nodes), environment_pack=pack or None, environment_pack_dir="/dev/shm"
    )
    DataParallelTrainer(
        train,
        backend_config=Config(),
        scaling_config=ScalingConfig(num_workers=int(ranks), slurm=slurm),
        run_config=RunConfig(storage_path="runs", name=name, verbose=0),
    ).fit()
"""


class Client:
    """A node's client of the filesystem that counts.

    Parameters
    ----------
    cluster, node
        Where it is.
    answer
        File for what is asked of it.
    places
        What it is mounted over.
    delay_s
        Seconds that each answer takes.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        node: str,
        answer: Path,
        places: Sequence[str],
        *,
        delay_s: float,
    ) -> None:
        words = [str(answer), str(CACHED_S), str(delay_s), *places]
        argv = [sys.executable, str(PROGRAMS / "counting_filesystem.py"), *words]
        self._answer = answer
        # The script and sbcast run on this machine itself, which is the head.
        self._process: subprocess.Popen[Any] = (
            subprocess.Popen(argv, start_new_session=True)
            if node == HEAD
            else cluster.popen_on(node, argv)
        )
        ready = Path(f"{answer}.ready")
        wait_until(ready.exists, what=f"the filesystem of {node}", timeout_s=30)

    def end(self) -> Counter[str]:
        """Unmount it; return what was asked of it."""
        os.killpg(self._process.pid, 15)
        wait_until(self._answer.exists, what="what was asked", timeout_s=30)
        self._process.wait(30)
        # It is there before it is written.
        wait_until(lambda: self._answer.stat().st_size, what="what was asked", timeout_s=30)
        return Counter(json.loads(self._answer.read_text()))


@contextmanager
def counted(
    cluster: VirtualCluster,
    nodes: Sequence[str],
    places: Sequence[str],
    *,
    delay_s: float,
) -> Iterator[Counter[str]]:
    """Count what nodes ask of some directories; the counter is filled at the end."""
    total: Counter[str] = Counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hpctrain-bench-")))
        for node in nodes:
            client = Client(cluster, node, folder / node, places, delay_s=delay_s)
            stack.callback(lambda client=client: total.update(client.end()))
        yield total


class Bench:
    """An environment, its pack, and where runs are."""

    def __init__(self, folder: str, python: str, cluster: VirtualCluster) -> None:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environment = {**inherited, **cluster.environ}
        self._folder, self._python, self._cluster = folder, python, cluster
        Path(folder, "train.py").write_text(_SCRIPT)
        Path(folder, "shared").mkdir()
        self.pack = str(Path(folder, "shared", "environment.tar"))
        words = [python, "-m", "hpctrain.cli", "pack", "-o", self.pack, "--json"]
        packed = json.loads(run(words, cwd=folder, environment=self.environment))
        self.pack_bytes = Path(self.pack).stat().st_size
        places = [place for place in (packed["prefix"], packed["base"]) if place]
        self.places = [*places, *packed["editable"].values()]

    def start(self, name: str, ranks: int, nodes: int, *, pack: str = "", **more: str) -> float:
        """Run a training; return the seconds that it took."""
        begin = time.monotonic()
        run(
            [
                *("salloc", "--quiet", f"--nodes={nodes}", f"--ntasks={ranks}"),
                *(self._python, "train.py", name, str(ranks), str(nodes), pack),
            ],
            cwd=self._folder,
            # The script is not on a node, so that ranks and agents alone are counted, and takes
            # itself to be on one, as in a job: this machine is what its nodes are.
            environment={
                **self.environment,
                "HPCTRAIN_LAUNCHER": "allocation",
                "SLURMD_NODENAME": HEAD,
                **more,
            },
        )
        return time.monotonic() - begin


def measure_starts(bench: Bench, cluster: VirtualCluster, arguments: Any) -> Iterator[Any]:
    """Start ranks on one node; yield what each start asked."""
    (node,) = cluster.node_names
    for ranks in arguments.ranks:
        for arm, forks in ARMS.items():
            pack = bench.pack if arm == "packed" else ""
            delay_s = arguments.delay_ms / 1000
            with counted(cluster, [node], bench.places, delay_s=delay_s) as asked:
                name = f"{arm.replace(' ', '-')}-{ranks}"
                wall_s = bench.start(name, ranks, 1, pack=pack, HPCTRAIN_FORK_SERVER=forks)
            metadata = sum(asked[kind] for kind in METADATA)
            row = {"row": "start", "ranks": ranks, "arm": arm, "metadata": metadata}
            row |= {"read_bytes": asked["bytes"], "wall_s": wall_s, "asked": dict(asked)}
            print(
                f"{ranks:3} ranks, {arm:<13}{metadata:7} metadata requests"
                f"{asked['bytes'] / 2**20:8.1f} MiB read{wall_s:7.1f} s",
                flush=True,
            )
            yield row


def measure_pack(
    bench: Bench, cluster: VirtualCluster, folder: Path, *, arms: Sequence[str]
) -> Iterator[Any]:
    """Start ranks on all nodes with a packed environment; yield what was read of the pack."""
    path = bench.environment["PATH"]
    srun = shutil.which("srun", path=path)
    without = {"tree": {"sbcast": _REFUSES}}
    # Nodes get no program by which they could get it from others.
    without["each node reads"] = {**without["tree"], "srun": f'exec {srun} "$@" </dev/null'}
    nodes = cluster.node_names
    for arm in arms:
        programs = folder / arm
        programs.mkdir()
        for name, text in without.get(arm, {}).items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        more = {"PATH": f"{programs}{os.pathsep}{path}"}
        places = [str(Path(bench.pack).parent)]
        with counted(cluster, [HEAD, *nodes], places, delay_s=0.0) as asked:
            wall_s = bench.start(
                arm.replace(" ", "-"), len(nodes), len(nodes), pack=bench.pack, **more
            )
        readings = asked["bytes"] / bench.pack_bytes
        row = {"row": "pack", "nodes": len(nodes), "arm": arm, "read_bytes": asked["bytes"]}
        row |= {"pack_bytes": bench.pack_bytes, "readings": readings, "wall_s": wall_s}
        print(
            f"{len(nodes):3} nodes, {arm:<17}{readings:7.2f} readings of "
            f"{bench.pack_bytes / 2**20:.0f} MiB{wall_s:7.1f} s",
            flush=True,
        )
        yield row


@contextmanager
def cluster_of(num_nodes: int, cpus: int) -> Iterator[VirtualCluster]:
    """Start a virtual cluster. Paths of its sockets must be short."""
    spec = ClusterSpec(num_nodes=num_nodes, cpus_per_node=cpus, gpus_per_node=0, mode=best_mode())
    with (
        tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as state,
        VirtualCluster.start(spec, state_dir=Path(state)) as cluster,
    ):
        yield cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter of an environment")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--nodes", type=int, default=16, help="of the rows of the pack; 0: none")
    parser.add_argument("--delay-ms", type=float, default=1.0, help="of each answer")
    parser.add_argument("--json", type=Path, help="file for every number")
    arguments = parser.parse_args()
    if best_mode() != "namespaces" or not os.path.exists("/dev/fuse"):
        raise SystemExit("left out: mounts on virtual nodes need root and /dev/fuse")
    machine, rows = describe_machine(), []
    where = {"prefix": "hpctrain-bench-", "dir": "/var/tmp"}
    if arguments.ranks:
        with (
            tempfile.TemporaryDirectory(**where) as folder,
            cluster_of(1, max(arguments.ranks)) as cluster,
        ):
            bench = Bench(folder, arguments.python, cluster)
            print(f"on {bench.places}, answers after {arguments.delay_ms:g} ms", flush=True)
            rows += measure_starts(bench, cluster, arguments)
    if arguments.nodes:
        with (
            tempfile.TemporaryDirectory(**where) as folder,
            cluster_of(arguments.nodes, 1) as cluster,
        ):
            bench = Bench(folder, arguments.python, cluster)
            arms = ("sbcast", "tree", "each node reads")
            rows += measure_pack(bench, cluster, Path(folder), arms=arms)
    if arguments.json is not None:
        written = {"machine": machine, "delay_ms": arguments.delay_ms, "rows": rows}
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
