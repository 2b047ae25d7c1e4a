from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpctrain import Result

TRAIN = """
import os
import sys

import hpctrain
from hpctrain.trainer import DataParallelTrainer


def train():
    from mpi4py import MPI

    from hpctrain.worker.context import active_worker

    mine = (os.uname().nodename, *active_worker("train()").context.gpu_ids)
    hpctrain.report({"gpus": sorted(MPI.COMM_WORLD.allgather(mine))})


gpu_request, storage = sys.argv[1:]
DataParallelTrainer(
    train,
    scaling_config=hpctrain.ScalingConfig(
        num_workers=4,
        use_gpu=True,
        slurm=hpctrain.SlurmConfig(nodes=2, gpu_request=gpu_request, time=5),
    ),
    run_config=hpctrain.RunConfig(name=gpu_request, storage_path=storage),
).fit()
"""


@pytest.mark.slurm
@pytest.mark.parametrize("gpu_request", ["gpus-per-node", "gpus-per-task", "gres", "gpus"])
def test_each_worker_gets_a_gpu_of_its_own(virtual_slurm, tmp_path: Path, gpu_request: str):
    # Agents start beside the ranks and must neither take GPUs nor be refused for not taking any.
    if not Path(sys.executable).with_name("mpiexec").exists():
        pytest.skip("no MPI wheel beside this Python: pip install 'hpctrain[local]'")
    (tmp_path / "train.py").write_text(TRAIN)
    argv = [sys.executable, "train.py", gpu_request, str(tmp_path / "runs")]
    done = virtual_slurm.run_on("head", argv, cwd=tmp_path, timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    gpus = Result.from_path(tmp_path / "runs" / gpu_request).metrics["gpus"]
    assert len({tuple(gpu) for gpu in gpus}) == 4
    assert len({node for node, _ in gpus}) == 2
    assert all(index in ("0", "1") for _, index in gpus)
