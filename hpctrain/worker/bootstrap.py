"""From a process that a launcher started to a rank that knows where it stands."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpctrain import environ
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.plan.gpus import assign_gpus
from hpctrain.worker import mpi
from hpctrain.world import World

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


def join_world(*, attempt: int, expected_size: int | None) -> tuple[World, Comm]:
    """Initialise MPI and return where this rank stands, with a communicator of hpctrain's own.

    Collective. Afterwards the variables by which the launcher spoke to this process are gone, so
    that its children do not take themselves for ranks.

    Parameters
    ----------
    expected_size
        Ranks that were asked for; None accepts what there is.

    Raises
    ------
    LaunchError
        If every rank is alone: the launcher and the MPI library speak different PMI dialects, and
        nothing else would say so.
    ConfigError
        If the world has another size otherwise.
    """
    launched_by = environ.environment()
    comm = mpi.initialize()
    if expected_size is not None and comm.size != expected_size:
        complaint = explain_wrong_size(
            comm.size, expected_size, library=mpi.library_version(), variables=launched_by
        )
        raise LaunchError(complaint) if comm.size == 1 else ConfigError(complaint)
    environ.scrub_launcher_variables()
    local = mpi.split_by_node(comm)
    # The lowest world rank on a node names the node: host names can be the same in containers.
    first_on_node = comm.allgather(local.bcast(comm.rank))
    nodes = sorted(set(first_on_node))
    world = World(
        attempt=attempt,
        world_rank=comm.rank,
        world_size=comm.size,
        local_rank=local.rank,
        local_world_size=local.size,
        node_rank=nodes.index(first_on_node[comm.rank]),
        num_nodes=len(nodes),
        hostname=socket.gethostname(),
    )
    environ.export({environ.RANK_MARKER: str(world.world_rank)})
    return world, comm


def hello_details(world: World) -> dict[str, Any]:
    """Return what a rank says of itself when it introduces itself. Not collective."""
    return {
        "pid": os.getpid(),
        "hostname": world.hostname,
        "node_rank": world.node_rank,
        "local_rank": world.local_rank,
    }


def explain_wrong_size(
    size: int, expected: int, *, library: str, variables: Mapping[str, str]
) -> str:
    """Return the message for a world of the wrong size. Not collective."""
    if size > 1:
        return (
            f"num_workers={expected}, but MPI found a world of {size} ranks. They must be equal: "
            f"set ScalingConfig(num_workers={size}), or start {expected} ranks."
        )
    if any(name.startswith("PMIX_") for name in variables):
        tried = "PMIx (srun --mpi=pmix, or Open MPI's mpiexec)"
    elif any(name in variables for name in ("PMI_RANK", "PMI_FD", "PMI_JOBID")):
        tried = "PMI-1/PMI-2 (srun --mpi=pmi2, or MPICH's mpiexec)"
    elif "SLURM_STEP_ID" in variables:
        tried = "no PMI at all (srun --mpi=none)"
    else:
        tried = "no PMI at all"
    wanted = "pmix" if "Open MPI" in library else "pmi2"
    return (
        f"{expected} ranks were asked for, but MPI found a world of {size}: every rank "
        f"is a world of its own. The launcher "
        f"offered {tried}; the MPI library is {library}. Launcher and library must be of one kind: "
        f"with srun use SlurmConfig(mpi={wanted!r}), otherwise the mpiexec that belongs to this "
        f"library (SlurmConfig(mpi='/path/to/mpiexec')). 'srun --mpi=list' shows what Slurm has."
    )


def visible_gpus() -> tuple[str, ...]:
    """Return the entries of ``CUDA_VISIBLE_DEVICES``.

    Not collective. Where it is not set, as on a workstation, every GPU of the machine is visible:
    the driver makes a device file for each.
    """
    value = environ.variable("CUDA_VISIBLE_DEVICES")
    if value is not None:
        return tuple(entry for entry in value.split(",") if entry)
    count = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in os.listdir("/dev"))
    return tuple(str(index) for index in range(count))


def gpus_of(world: World, gpus_per_worker: int) -> tuple[str, ...]:
    """Return the GPUs of a rank. Not collective."""
    return assign_gpus(
        visible_gpus(),
        local_rank=world.local_rank,
        local_world_size=world.local_world_size,
        gpus_per_worker=gpus_per_worker,
    )


def thread_variables(cpus: int) -> dict[str, str]:
    """Return the variables that give a process `cpus` compute threads. Not collective.

    Libraries read them when they are loaded, so they are set before.
    """
    count = str(cpus)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NUMEXPR_NUM_THREADS": count,
    }
