"""Where the workers of a run lie that needs no job: in an allocation, on hosts, on this machine.

What there is, is asked here; how workers are placed on it is decided by `hpctrain.plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hpctrain import environ
from hpctrain.config import ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.home import hostfile
from hpctrain.plan.allocation import AllocatedNode, place_in_allocation
from hpctrain.plan.hosts import Host, read_hostfile
from hpctrain.plan.resources import Placement
from hpctrain.plan.site import Site


def place_in_this_allocation(
    scaling: ScalingConfig, site: Site
) -> tuple[Placement, dict[str, int]]:
    """Return how the workers lie in this allocation, and its slots by node. Not collective.

    Raises
    ------
    ConfigError
        If they do not fit.
    LaunchError
        If Slurm does not say what its nodes have.
    """
    from hpctrain.slurm.probe import allocation_nodes

    nodes = {
        name: replace(node, gpus=site.gpus_per_node) if node.gpus is None else node
        for name, node in allocation_nodes(with_gpus=scaling.use_gpu).items()
    }
    return place_in_allocation(scaling, nodes, cpus_per_gpu=site.cpus_per_gpu)


def place_in_share(
    scaling: ScalingConfig, site: Site, share: Mapping[str, AllocatedNode]
) -> tuple[Placement, dict[str, int]]:
    """Return how the workers lie in a share of it, and the slots by node. Not collective.

    Raises
    ------
    ConfigError
        If they do not fit.
    """
    placement, slots = place_in_allocation(scaling, share, cpus_per_gpu=site.cpus_per_gpu)
    # Without names it could be on other nodes.
    return replace(placement, nodes=placement.nodes or tuple(slots)), slots


def step_gpu_args(placement: Placement) -> tuple[str, ...]:
    """Return the options of srun for GPUs in an allocation with a total number of them.

    Not collective.
    """
    others = ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK")
    if environ.variable("SLURM_GPUS") is None or any(map(environ.variable, others)):
        return ()
    # A step that may overlap others, or has some of the nodes only, is refused the total
    # ("Insufficient GRES available in allocation", measured with Slurm 22.05).
    per_task = placement.gpus_per_task
    return (f"--gpus-per-task={per_task}" if per_task else "--gres=none",)


def place_on_hosts(scaling: ScalingConfig, site: Site) -> tuple[Placement, dict[str, int]]:
    """Return how the workers lie on the hosts that mpiexec uses, and the slots of each.

    Not collective.

    Raises
    ------
    ConfigError
        If they do not fit, or no hosts are known.
    """
    cpus = scaling.num_cpus_per_worker
    nodes = {
        # Its slots are all that is known of a host, so there is no room beside them.
        host.name: AllocatedNode(tasks=host.slots, cpus=host.slots and host.slots * cpus)
        for host in read_hosts()
    }
    placement, slots = place_in_allocation(scaling, nodes, cpus_per_gpu=site.cpus_per_gpu)
    # Without names it is on all of them.
    return replace(placement, nodes=placement.nodes or tuple(slots)), slots


def read_hosts() -> tuple[Host, ...]:
    """Return the hosts that the user, or a job of another scheduler, names. Not collective.

    Raises
    ------
    ConfigError
        If there are none.
    """
    path = hostfile(environ.environment())
    if path is None:
        raise ConfigError(
            "launcher='mpiexec' needs to know the hosts, and there is no job of PBS, LSF or Grid "
            "Engine here that names them. Give them with: hpctrain run --hostfile FILE SCRIPT"
        )
    return read_hostfile(Path(path))


def refuse_missing_gpus(scaling: ScalingConfig) -> None:
    """Check before the start that this machine has a GPU for each worker. Not collective.

    Raises
    ------
    ConfigError
        If it has not.
    """
    from hpctrain.worker.bootstrap import gpu_mask, visible_gpus

    visible, needed = visible_gpus(), scaling.total_resources.get("GPU", 0)
    if len(visible) >= needed:
        return
    mask = gpu_mask()
    why = "" if mask is None else f" ({'='.join(mask)})"
    fits = len(visible) // scaling.num_gpus_per_worker
    way_out = f"Use num_workers={fits}" if fits else "Set use_gpu=False"
    raise ConfigError(
        f"num_workers={scaling.num_workers} with use_gpu=True needs {needed} GPUs on this machine, "
        f"which shows {len(visible)}{why}. {way_out}, or run it where there are more: "
        f"hpctrain submit, on the login node of a cluster."
    )
