"""Validations run where the ranks run: in the container."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.containers.conftest import Image
from tests.processes import run_python

pytestmark = [pytest.mark.slurm, pytest.mark.mpi]
TIMEOUT_S = 240
# No image here has it, every Linux does, and nobody mounts it.
OUTSIDE = "/etc/os-release"

SCRIPT = """
import json, os, sys
import hpctrain
from hpctrain import Checkpoint, Container, DataParallelTrainer, RunConfig, ScalingConfig
from hpctrain import SlurmConfig, ValidationConfig

def validate(checkpoint):
    return {"sees": int(os.path.exists("/etc/os-release")), "a": checkpoint.to_dict()["a"] + 1}

def train():
    hpctrain.report({"step": 1}, Checkpoint.from_dict({"a": 1}), validation=True)

if __name__ == "__main__":
    storage, fields, in_job = sys.argv[1:]
    slurm_config = SlurmConfig(time="5") if in_job == "job" else None
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(
            num_workers=1, slurm=SlurmConfig(container=Container(**json.loads(fields)))
        ),
        run_config=RunConfig(storage_path=storage, name="run", verbose=0),
        validation_config=ValidationConfig(fn=validate, slurm_config=slurm_config),
    ).fit()
"""


@pytest.mark.parametrize("where", ["process", "job"])
def test_a_validation_sees_what_ranks_see(
    virtual_slurm: VirtualCluster, image: Image, tmp_path: Path, where: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run_python(
        script,
        tmp_path / "runs",
        json.dumps(image.values),
        where,
        cwd=tmp_path,
        environ={**virtual_slurm.environ, **image.environ},
        timeout_s=TIMEOUT_S,
    )
    assert os.path.exists(OUTSIDE)
    ((_, metrics),) = Result.from_path(tmp_path / "runs/run").best_checkpoints
    assert (metrics["sees"], metrics["a"]) == (0, 2)
