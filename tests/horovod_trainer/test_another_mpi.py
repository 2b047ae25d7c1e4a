"""Ranks on Open MPI with a Horovod that was built for the MPI of this environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.errors import WorkerError

pytest.importorskip("horovod", reason="hpctrain install horovod")

MPIEXEC = shutil.which("mpiexec.openmpi")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(
        MPIEXEC is None, reason="no mpiexec.openmpi on PATH: apt-get install openmpi-bin"
    ),
]

SCRIPT = """
import sys
from hpctrain import RunConfig, ScalingConfig, SlurmConfig
from hpctrain.horovod import HorovodConfig, HorovodTrainer

def train():
    import horovod.torch as hvd
    import torch

    return hvd.allreduce(torch.tensor(hvd.rank() + 1.0), op=hvd.Sum, name="sum").item()

if __name__ == "__main__":
    storage, mpiexec, transport = sys.argv[1:]
    result = HorovodTrainer(
        train,
        horovod_config=HorovodConfig(transport=transport),
        scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(mpi=mpiexec)),
        run_config=RunConfig(storage_path=storage, name=transport, verbose=0),
    ).fit()
    print("the sum is", result.return_value)
"""


def train(tmp_path: Path, transport: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert MPIEXEC is not None
    return subprocess.run(
        [sys.executable, str(script), str(tmp_path), MPIEXEC, transport],
        # The wheel in this environment would be loaded before the site's library.
        env={**os.environ, "MPI4PY_LIBMPI": "libmpi.so.40", "HPCTRAIN_LAUNCHER": "local"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_it_is_refused_before_it_ends_the_process_and_gloo_works(tmp_path: Path) -> None:
    over_mpi = train(tmp_path, "auto")
    assert over_mpi.returncode == WorkerError.exit_code
    assert "Horovod was built for another MPI than the ranks have" in over_mpi.stderr
    assert "hpctrain install horovod" in over_mpi.stderr
    over_gloo = train(tmp_path, "gloo")
    assert over_gloo.returncode == 0, over_gloo.stdout + over_gloo.stderr
    assert "the sum is 3.0" in over_gloo.stdout
