"""Ranks go where the tasks of an allocation are, also where nodes have unequal numbers of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpctrain.testing.slurm import VirtualCluster

MPIEXEC = Path(sys.executable).with_name("mpiexec")
# Debian's name: another MPI can be installed beside it, and mpiexec be that one.
OPEN_MPI = shutil.which("mpiexec.openmpi")
TIMEOUT_S = 180

# A line is fitted to 60 points, whose gradients all ranks add up.
SCRIPT = """
import json, os, sys
import hpctrain
from hpctrain import DataParallelTrainer, HpctrainError, RunConfig, ScalingConfig, SlurmConfig

def train():
    from mpi4py import MPI

    from hpctrain.worker.context import active_worker

    context = active_worker("train()").context
    points = [x / 60 for x in hpctrain.get_dataset_shard("train")]
    slope = 0.0
    for step in range(3):
        gradient = MPI.COMM_WORLD.allreduce(sum((slope * x - 3 * x) * x for x in points))
        slope -= 0.02 * gradient
        hpctrain.report({"slope": slope, "points": MPI.COMM_WORLD.allreduce(len(points))})
    world = context.world
    place = (world.hostname, world.node_rank, world.local_rank, world.local_world_size)
    return MPI.COMM_WORLD.allgather((*place, *context.gpu_ids))

if __name__ == "__main__":
    for name, request in json.loads(sys.argv[2]).items():
        slurm = SlurmConfig(**request.pop("slurm", {}))
        trainer = DataParallelTrainer(
            train,
            datasets={"train": list(range(60))},
            scaling_config=ScalingConfig(**request, slurm=slurm),
            run_config=RunConfig(storage_path=sys.argv[1], name=name, verbose=0),
        )
        try:
            result = trainer.fit()
        except HpctrainError as error:
            answer = f"{type(error).__name__}: {error}"
        else:
            slopes = [metrics["slope"] for metrics in result.metrics_history]
            points = [metrics["points"] for metrics in result.metrics_history]
            answer = {"ranks": result.return_value, "slopes": slopes, "points": points}
            answer["tasks"] = os.environ.get("SLURM_TASKS_PER_NODE")
        with open(f"{sys.argv[1]}/{name}.json", "w") as file:
            json.dump(answer, file)
"""


def fit(
    tmp_path: Path, runs: dict[str, Any], *, before: tuple[str, ...] = (), **environ: str
) -> dict[str, Any]:
    """Return what each of some runs of a script has answered, by name."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [*before, sys.executable, str(script), str(tmp_path), json.dumps(runs)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in runs}


def counts(answer: dict[str, Any]) -> list[int]:
    """Return how many ranks each node has, and check that every rank knows it."""
    assert isinstance(answer, dict), answer
    ranks = answer["ranks"]
    on_node = Counter(node for node, *_ in ranks)
    names = list(on_node)
    expected = [
        (node, names.index(node), local_rank, on_node[node])
        for node in names
        for local_rank in range(on_node[node])
    ]
    assert [tuple(rank[:4]) for rank in ranks] == expected
    return list(on_node.values())


@pytest.mark.slurm
def test_five_ranks_on_unequal_nodes_compute_the_same_in_every_home(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    five = {"num_workers": 5}
    cluster = dict(virtual_slurm.environ)
    salloc = ("salloc", "--quiet", "--nodes=2", "--ntasks=5")
    # srun would take it for the nodes of every step.
    hostfile = tmp_path / "hosts"
    hostfile.write_text("node1\n")
    answers = fit(tmp_path, {"laptop": five}, HPCTRAIN_LAUNCHER="local")
    answers |= fit(tmp_path, {"spmd": five}, before=(str(MPIEXEC), "-n", "5"))
    answers |= fit(tmp_path, {"login": five}, **cluster)
    answers |= fit(
        tmp_path,
        {"allocation": five, "hydra": {**five, "slurm": {"mpi": "wheel"}}},
        before=(*salloc, "env", f"SLURM_HOSTFILE={hostfile}"),
        **cluster,
    )
    srun = ("srun", "--mpi=pmi2", "--nodes=2", "--ntasks=5")
    answers |= fit(tmp_path, {"srun": five}, before=srun, **cluster)
    # Slurm's pmi2 tells MPI then that every rank is on a node of its own.
    names = "--nodelist=node1,node1,node2,node2,node2"
    arbitrary = ("srun", "--mpi=pmi2", "--ntasks=5", names, "--distribution=arbitrary")
    answers |= fit(tmp_path, {"arbitrary": five}, before=arbitrary, **cluster)
    if OPEN_MPI is not None:
        answers |= fit(
            tmp_path,
            {"openmpi": {**five, "slurm": {"mpi": OPEN_MPI}}},
            before=salloc,
            MPI4PY_LIBMPI="libmpi.so.40",
            **cluster,
        )
    assert counts(answers["laptop"]) == [5]
    assert counts(answers["login"]) == [3, 2]
    assert counts(answers["arbitrary"]) == [2, 3]
    # Slurm lays five tasks on nodes as it likes, and as others leave it room.
    assert sorted(counts(answers["srun"])) in ([1, 4], [2, 3])
    for home in answers.keys() - {"laptop", "spmd", "login", "arbitrary", "srun"}:
        assert counts(answers[home]) == [int(n) for n in answers[home]["tasks"].split(",")], home
    for home, answer in answers.items():
        assert answer["slopes"] == answers["laptop"]["slopes"], home
        assert answer["points"] == [60, 60, 60], home


@pytest.mark.slurm
def test_what_an_allocation_has_room_for_starts_on_the_fewest_nodes(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    cluster = dict(virtual_slurm.environ)

    def in_allocation(*options: str, **runs: Any) -> dict[str, Any]:
        return fit(tmp_path, runs, before=("salloc", "--quiet", *options), **cluster)

    answers = in_allocation(
        "--nodes=2",
        "--ntasks-per-node=4",
        two={"num_workers": 2},
        five={"num_workers": 5},
        spread={"num_workers": 3, "placement_strategy": "SPREAD"},
        nine={"num_workers": 9},
    )
    answers |= in_allocation("--nodes=2", "--ntasks=4", four={"num_workers": 4})
    tasks = {"3,1": [3, 1], "1,3": [1, 3], "2(x2)": [2, 2]}
    assert counts(answers["four"]) == tasks[answers["four"]["tasks"]]
    assert counts(answers["two"]) == [2]
    assert counts(answers["five"]) == [3, 2]
    assert counts(answers["spread"]) == [2, 1]
    assert "hold 4(x2) of them. Use num_workers=8 or less" in answers["nine"]

    gpus = {"use_gpu": True, "num_workers": 4}
    answers = in_allocation(
        "--nodes=2",
        "--ntasks-per-node=4",
        # Slurm gives 3 and 1.
        "--gpus=4",
        all=gpus,
        one={"num_workers": 1},
        three={**gpus, "num_workers": 3},
    )
    assert counts(answers["all"]) == [3, 1]
    assert [rank[4:] for rank in answers["all"]["ranks"]] == [["0"], ["1"], ["2"], ["0"]]
    assert counts(answers["one"]) == [1]
    assert counts(answers["three"]) == [3]
    assert [rank[4:] for rank in answers["three"]["ranks"]] == [["0"], ["1"], ["2"]]
