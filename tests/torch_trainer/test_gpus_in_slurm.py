"""Which rank gets which GPU of a node. The GPUs are Slurm's only: no CUDA is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.testing.slurm import VirtualCluster

pytestmark = pytest.mark.slurm

SCRIPT = """
import json, os, sys
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.worker.context import active_worker

def train():
    context = hpctrain.get_context()
    mine = {
        "node": context.get_node_rank(),
        "local_rank": context.get_local_rank(),
        "gpu_ids": list(context.gpu_ids),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    return active_worker("train()").comm.allgather(mine)

if __name__ == "__main__":
    storage, answers = sys.argv[1], {}
    for case in sys.argv[2:]:
        request, gpus = case.split(":")
        result = DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(
                num_workers=4,
                use_gpu=True,
                resources_per_worker={"GPU": int(gpus)},
                slurm=SlurmConfig(nodes=2, gpu_request=request),
            ),
            run_config=RunConfig(storage_path=storage, name=f"{request}-{gpus}", verbose=0),
        ).fit()
        answers[case] = result.return_value
    with open(f"{storage}/answers.json", "w") as file:
        json.dump(answers, file)
"""


def ask(
    cluster: VirtualCluster, tmp_path: Path, *cases: str, prefix: tuple[str, ...] = ()
) -> dict[str, list[dict[str, Any]]]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [*prefix, sys.executable, str(script), str(tmp_path), *cases],
        env={**os.environ, **cluster.environ},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers: dict[str, list[dict[str, Any]]] = json.loads((tmp_path / "answers.json").read_text())
    return answers


def show(ranks: list[dict[str, Any]]) -> list[str]:
    return [
        f"{rank['node']}.{rank['local_rank']} {','.join(rank['gpu_ids'])} of {rank['visible']}"
        for rank in ranks
    ]


def test_every_rank_of_a_job_has_gpus_of_its_own_however_they_were_asked_for(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    answers = ask(
        virtual_slurm, tmp_path, "gpus-per-node:1", "gres:1", "gpus-per-task:1", "gpus-per-node:2"
    )
    seen = {case: show(ranks) for case, ranks in answers.items()}
    of_the_node = ["0.0 0 of 0,1", "0.1 1 of 0,1", "1.0 0 of 0,1", "1.1 1 of 0,1"]
    assert seen["gpus-per-node:1"] == of_the_node
    assert seen["gres:1"] == of_the_node
    assert seen["gpus-per-task:1"] == ["0.0 0 of 0", "0.1 1 of 1", "1.0 0 of 0", "1.1 1 of 1"]
    assert seen["gpus-per-node:2"] == [
        "0.0 0,1 of 0,1,2,3",
        "0.1 2,3 of 0,1,2,3",
        "1.0 0,1 of 0,1,2,3",
        "1.1 2,3 of 0,1,2,3",
    ]


@pytest.mark.parametrize(
    ("allocated", "expected"),
    [
        ("--gpus-per-node=4", ["0,1 of 0,1,2,3", "2,3 of 0,1,2,3"] * 2),
        ("--gpus-per-task=2", ["0,1 of 0,1", "2,3 of 2,3"] * 2),
    ],
)
def test_ranks_share_the_gpus_of_an_allocation(
    virtual_slurm: VirtualCluster, tmp_path: Path, allocated: str, expected: list[str]
) -> None:
    salloc = ("salloc", "--quiet", "-N2", "--ntasks-per-node=2", allocated)
    answers = ask(virtual_slurm, tmp_path, "gpus-per-node:2", prefix=salloc)
    places = ["0.0", "0.1", "1.0", "1.1"]
    assert show(answers["gpus-per-node:2"]) == [
        f"{place} {gpus}" for place, gpus in zip(places, expected, strict=True)
    ]
