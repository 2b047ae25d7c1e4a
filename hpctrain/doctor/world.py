"""One rank of an MPI probe: prints the world that it is in, its CPUs and its GPUs as JSON.

::

    srun --mpi=pmi2 -n 2 python -m hpctrain.doctor.world
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from typing import Any

from hpctrain import environ
from hpctrain.worker.bootstrap import visible_gpus


def describe_rank(*, with_mpi: bool) -> dict[str, Any]:
    """Return what this rank sees, as JSON values.

    Collective with MPI: all ranks exchange their hosts.
    """
    answer: dict[str, Any] = {
        "host": socket.gethostname(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "gpus": visible_gpus(),
        "num_devices": len([name for name in os.listdir("/dev") if _opens(name)]),
        "local_rank": environ.variable("SLURM_LOCALID"),
    }
    if with_mpi:
        from hpctrain.worker.mpi import finalize, initialize, library_version

        world = initialize()
        answer |= {"rank": world.Get_rank(), "size": world.Get_size()}
        answer["library"] = " ".join(library_version().split())
        answer["hosts"] = sorted(set(world.allgather(answer["host"])))
        finalize()
    return answer


def _opens(name: str) -> bool:
    """Return whether a device is that of a GPU, and this rank may use it."""
    return re.fullmatch(r"nvidia\d+", name) is not None and os.access(f"/dev/{name}", os.R_OK)


if __name__ == "__main__":
    # In one write: lines of several ranks do not mix.
    sys.stdout.write(f"{json.dumps(describe_rank(with_mpi='--no-mpi' not in sys.argv))}\n")
