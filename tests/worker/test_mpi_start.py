"""MPI starts under srun, whatever a process has in its memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpctrain.testing.slurm import VirtualCluster

# Chunks of all sizes that are free, between others that are not, full of what cannot be compressed.
PROGRAM = """
import os
chunks = [os.urandom(size) for size in range(600, 90000, 31)]
kept = chunks[::2]
del chunks
from hpctrain.worker import mpi
comm = mpi.initialize()
try:
    comm.send(None, dest=7)
except Exception as error:   # as if mpi4py had initialised MPI
    print(comm.size, type(error).__name__, flush=True)
mpi.finalize()
"""


@pytest.mark.slurm
def test_ranks_whose_memory_was_used_before_find_each_other_by_pmi2(
    virtual_slurm: VirtualCluster,
) -> None:
    done = subprocess.run(
        ["srun", "--mpi=pmi2", "-N3", "-n3", "-c1", sys.executable, "-c", PROGRAM],
        env={**os.environ, **virtual_slurm.environ},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.splitlines() == ["3 Exception"] * 3, done.stderr
