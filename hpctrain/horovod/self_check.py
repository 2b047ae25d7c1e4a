"""``python -m hpctrain.horovod.self_check [mpi]``: one rank of the installed Horovod adds up."""

from __future__ import annotations

import sys
from typing import Any

from hpctrain import environ
from hpctrain.horovod import installed
from hpctrain.worker import mpi


def check(*, over_mpi: bool) -> str:
    """Return what is built in, after a sum over one rank. Not collective."""
    import horovod
    import torch

    hvd = installed.load()
    _add_up(hvd, "gloo")
    if over_mpi:
        # By itself, as a rank does: Horovod of another MPI ends the process here.
        comm = mpi.initialize()
        installed.check_mpi(hvd)
        _add_up(hvd, "mpi", comm=comm)
        mpi.finalize()
    parts = {"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": hvd.nccl_built()}
    has = " and ".join(name for name, built in parts.items() if built)
    lacks = " and ".join(name for name, built in parts.items() if not built)
    known = f"Horovod {horovod.__version__} for torch {torch.__version__}, with {has}"
    return f"{known}, without {lacks}" if lacks else known


def _add_up(hvd: Any, transport: str, **how: Any) -> None:
    import torch

    environ.export({"HOROVOD_CONTROLLER": transport, "HOROVOD_CPU_OPERATIONS": transport})
    hvd.init(**how)
    total = hvd.allreduce(torch.arange(4.0), name=transport, op=hvd.Sum)
    if total.tolist() != [0.0, 1.0, 2.0, 3.0]:
        raise SystemExit(f"a sum over one rank of {transport} is wrong: {total.tolist()}")
    hvd.shutdown()


if __name__ == "__main__":
    print(check(over_mpi="mpi" in sys.argv[1:]))
