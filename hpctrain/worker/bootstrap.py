"""From a process that a launcher started to a rank that knows where it stands."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpctrain import environ, timeouts
from hpctrain.control.wire import PROTOCOL
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.plan.gpus import SeenGpus, assign_gpus, check_gpus_of_ranks
from hpctrain.temporary_checkpoint import temporary_owner
from hpctrain.worker import mpi
from hpctrain.worker.leftovers import unlink_mapped_segments
from hpctrain.world import Communicator, World

if TYPE_CHECKING:
    from hpctrain.worker.mpi import Comm


_COLLECTIVE_ELEMENTS = 1024


def join_world(
    *, attempt: int, fewest: int, most: int, started_elsewhere: bool = False
) -> tuple[World, Comm]:
    """Initialise MPI and return where this rank stands, with a communicator of hpctrain's own.

    Collective. Deletes the variables that the launcher set for this process, so that its children
    are not taken for ranks.

    Parameters
    ----------
    fewest, most
        Ranks that were asked for.
    started_elsewhere
        Whether the user started the ranks, so that no option of hpctrain changes how.

    Raises
    ------
    LaunchError
        If every rank is alone: the launcher and the MPI library speak different PMI dialects, and
        nothing else would report it. Also if a sum over the ranks fails.
    ConfigError
        If the world has another size otherwise.
    """
    launched_by = environ.environment()
    comm = mpi.initialize()
    try:
        if not fewest <= comm.size <= most:
            mismatch = explain_wrong_size(
                comm.size,
                min(max(comm.size, fewest), most),
                library=mpi.library_version(),
                variables=launched_by,
                started_elsewhere=started_elsewhere,
            )
            raise LaunchError(mismatch) if comm.size == 1 else ConfigError(mismatch)
        environ.scrub_launcher_variables()
        check_collective(comm, timeout_s=timeouts.FIRST_COLLECTIVE_S)
    finally:
        # All ranks have taken part in the sum, so all have left MPI_Init; or this start has failed.
        unlink_mapped_segments()
    local = mpi.split_by_node(comm, misplaced_node(launched_by, comm.size))
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


def misplaced_node(variables: Mapping[str, str], size: int) -> int | None:
    """Return the number of this node where MPI may not know which ranks share it, else None.

    Not collective. By Slurm's pmi2 each task of ``srun --distribution=arbitrary`` is on a node of
    its own (seen with Slurm 22.05 and MPICH).

    Examples
    --------
    >>> step = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_PROCID": "4", "SLURM_NODEID": "1"}
    >>> misplaced_node({**step, "SLURM_DISTRIBUTION": "arbitrary"}, 5)
    1
    """
    is_arbitrary = variables.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")
    is_step = variables.get("SLURM_STEP_NUM_TASKS") == str(size) and "SLURM_PROCID" in variables
    return int(variables["SLURM_NODEID"]) if is_arbitrary and is_step else None


def check_collective(comm: Comm, *, timeout_s: float) -> None:
    """Let all ranks add numbers up together, 8 KiB of them, and look at the sums.

    Collective.

    Raises
    ------
    LaunchError
        If it does not end within `timeout_s` seconds, or a sum is wrong.
    """
    rank, size = comm.rank, comm.size
    mine = array("q", [rank + 1]) * _COLLECTIVE_ELEMENTS
    sums = mpi.sum_over_ranks(comm, mine, timeout_s=timeout_s)
    where = f"on rank {rank} of {size} ({socket.gethostname()})"
    if sums is None:
        raise LaunchError(
            f"a sum over {size} ranks has not ended {where} within "
            f"{timeouts.describe(timeout_s)}: the network between their nodes does not carry MPI's "
            f"messages. Which network MPI uses is up to "
            f"UCX_NET_DEVICES, FI_PROVIDER or OMPI_MCA_btl, as the site's documentation describes."
        )
    right = size * (size + 1) // 2
    if wrong := [value for value in sums if value != right]:
        raise LaunchError(
            f"a sum over {size} ranks is wrong {where}: {wrong[0]} in place of {right}. A node's "
            f"memory or network, or the MPI library, is broken; try other nodes or another library."
        )


def hello_details(world: World) -> dict[str, Any]:
    """Return what a rank sends of itself in its first frame. Not collective."""
    return {
        "protocol": PROTOCOL,
        "pid": os.getpid(),
        "tmp": tempfile.gettempdir(),
        "tmp_owner": temporary_owner(),
        "hostname": world.hostname,
        "node_rank": world.node_rank,
        "local_rank": world.local_rank,
    }


def explain_wrong_size(
    size: int,
    expected: int,
    *,
    library: str,
    variables: Mapping[str, str],
    started_elsewhere: bool = False,
) -> str:
    """Return the message for a world of the wrong size. Pure; not collective."""
    if size > 1:
        return (
            f"num_workers={expected}, but MPI found a world of {size} ranks. They must agree: "
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
    listed = "'srun --mpi=list' shows what Slurm has."
    if not started_elsewhere:
        way_out = (
            f"with srun use SlurmConfig(mpi={wanted!r}), otherwise the mpiexec that belongs to "
            f"this library (SlurmConfig(mpi='/path/to/mpiexec')). {listed}"
        )
    elif "SLURM_JOB_ID" in variables:
        way_out = (
            f"start the ranks with 'srun --mpi={wanted}', or with the mpiexec that belongs to this "
            f"library; or start the script once, without srun, and hpctrain starts them. {listed}"
        )
    else:
        way_out = (
            "start the ranks with the mpiexec that belongs to this library; or start the script "
            "once, without mpiexec, and hpctrain starts them."
        )
    return (
        f"{expected} ranks were asked for, but MPI found a world of {size}: every rank "
        f"is a world of its own. The launcher "
        f"offered {tried}; the MPI library is {library}. Launcher and library must be of one kind: "
        f"{way_out}"
    )


# Slurm sets those of the drivers that it finds. HIP reads the first like the second, and counts
# from 0 what the third leaves.
_MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_AMD = "0x1002"


def gpu_mask() -> tuple[str, str] | None:
    """Return the variable that says which GPUs are visible, and its value; None if none is set.

    Not collective.
    """
    values = ((name, environ.variable(name)) for name in _MASKS)
    return next(((name, value) for name, value in values if value is not None), None)


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that are visible, as ``CUDA_VISIBLE_DEVICES`` would name them.

    Not collective. Where no variable names them, as on a workstation, every GPU of the machine is
    visible: the driver makes a device file for each.
    """
    if (mask := gpu_mask()) is None:
        return _count(len(gpu_devices()))
    name, value = mask
    entries = tuple(entry for entry in value.split(",") if entry)
    return _count(len(entries)) if name == "ROCR_VISIBLE_DEVICES" else entries


def _count(number: int) -> tuple[str, ...]:
    return tuple(map(str, range(number)))


def gpu_devices(root: str = "/") -> list[str]:
    """Return the device files of the GPUs of NVIDIA, else those of AMD, below ``/dev``.

    Not collective.

    Parameters
    ----------
    root
        Directory that holds ``dev`` and ``sys``.
    """
    dev = os.path.join(root, "dev")
    if found := sorted(name for name in os.listdir(dev) if re.fullmatch(r"nvidia\d+", name)):
        return found
    try:
        os.stat(os.path.join(dev, "kfd"))
        names = os.listdir(os.path.join(dev, "dri"))
    except OSError:
        return []
    # The cards of a computer's own display may be of others.
    return sorted(
        f"dri/{name}"
        for name in names
        if re.fullmatch(r"renderD\d+", name) and _vendor(root, name) == _AMD
    )


def _vendor(root: str, render_node: str) -> str:
    try:
        with open(os.path.join(root, "sys/class/drm", render_node, "device/vendor")) as file:
            return file.read().strip()
    except OSError:
        return ""


def see_gpus(world: World) -> SeenGpus:
    """Return which GPUs this process sees. Not collective."""
    # access() also asks the cgroup of the task, by which Slurm hides the GPUs of others.
    mask = gpu_mask()
    openable = (name for name in gpu_devices() if os.access(f"/dev/{name}", os.R_OK | os.W_OK))
    return SeenGpus(
        hostname=world.hostname,
        node_rank=world.node_rank,
        mask=None if mask is None else "=".join(mask),
        visible=visible_gpus(),
        devices=tuple(openable),
    )


def gpus_of(world: World, gpus_per_worker: int) -> tuple[str, ...]:
    """Return the GPUs of a rank. Not collective."""
    return assign_gpus(
        visible_gpus(),
        local_rank=world.local_rank,
        local_world_size=world.local_world_size,
        gpus_per_worker=gpus_per_worker,
    )


def gpus_of_ranks(world: World, comm: Communicator, gpus_per_worker: int) -> tuple[str, ...]:
    """Return the GPUs of this rank, which no other rank has. Collective.

    Raises
    ------
    ConfigError
        On this rank, if it sees too few; on every rank, if some see the same GPUs and too few for
        all of them.
    """
    own = gpus_of(world, gpus_per_worker)
    if gpus_per_worker == 0:
        return own
    seen = comm.gather(see_gpus(world))
    refused: ConfigError | None = None
    if seen is not None:
        try:
            check_gpus_of_ranks(seen, gpus_per_worker)
        except ConfigError as error:
            refused = error
    if (refused := comm.bcast(refused)) is not None:
        raise refused
    return own
