"""What this machine's Slurm says of itself, asked as seldom as possible."""

from __future__ import annotations

import re
from collections.abc import Callable

from hpctrain import environ
from hpctrain.config import ScalingConfig
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.log import log
from hpctrain.plan.allocation import AllocatedNode
from hpctrain.plan.resources import NodeShape, Placement, node_range, place_workers
from hpctrain.plan.sbatch import chooses_nodes
from hpctrain.plan.site import Site, known_shape
from hpctrain.rundir.display import counted
from hpctrain.slurm.client import Asked, run_slurm
from hpctrain.slurm.job import find_job
from hpctrain.slurm.nodes import allocated_hosts, expand_hosts
from hpctrain.slurm.output import read_allocation
from hpctrain.slurm.partitions import NoDefaultPartitionError, Partition, parse_partitions
from hpctrain.slurm_config import time_limit_minutes

_default_names: list[str] = []


def can_submit() -> bool:
    """Return whether this machine submits to Slurm.

    Not collective.

    Raises
    ------
    LaunchError
        If Slurm is configured here but its controller does not answer: training must not start on
        a login node only because the controller is away for a moment.
    """
    if environ.find_program("sbatch") is None:
        return False
    answer = run_slurm(["scontrol", "ping"])
    if answer.returncode == 0:
        return True
    # Slurm's commands are installed, but there is no slurm.conf: not a cluster.
    if re.search(r"configuration source|slurm\.conf", answer.stdout + answer.stderr):
        return False
    raise LaunchError(
        f"Slurm's controller does not answer: {(answer.stdout + answer.stderr).strip()}. Try again "
        f"later, or run on this machine with HPCTRAIN_LAUNCHER=local.",
        transient=True,
    )


def query_partition(
    name: str | None, *, meanwhile: Callable[[], object] = lambda: None
) -> Partition:
    """Return what Slurm says of a partition; None is the default one.

    Not collective. One call of ``sinfo``.

    Parameters
    ----------
    name
        As in `parse_partitions`.
    meanwhile
        Called while it answers.

    Raises
    ------
    NoDefaultPartitionError, ConfigError
        As in `parse_partitions`.
    """
    # Hidden partitions take jobs too; nodes that differ are not to be added up.
    columns = "--format=%P|%a|%l|%D|%c|%G|%m"
    asked = Asked(["sinfo", "--local", "--all", "--exact", "--noheader", columns])
    try:
        meanwhile()
    except BaseException:
        asked.close()
        raise
    answer = asked.answer()
    if answer.returncode != 0:
        raise LaunchError(f"sinfo: {answer.stderr.strip()}", transient=True)
    partition = parse_partitions(answer.stdout, name)
    if name is None:
        _default_names[:] = [partition.name]
    return partition


def default_partition() -> str:
    """Return the name of the default partition, as Slurm has last given it to this process.

    Not collective. Queries Slurm if it has not. Only a change of Slurm's configuration changes it.

    Raises
    ------
    ConfigError
        If there is none.
    LaunchError
        If Slurm is asked, and does not answer.
    """
    return _default_names[0] if _default_names else query_partition(None).name


def place_on_partition(
    scaling: ScalingConfig,
    site: Site,
    *,
    needs_answer: bool,
    meanwhile: Callable[[], object] = lambda: None,
) -> tuple[Placement, NodeShape]:
    """Return the placement of workers on nodes of the partition of a request, and their shape.

    Not collective.

    Parameters
    ----------
    scaling
        What is asked for.
    site
        The site profile, whose shape of a node wins over Slurm's.
    needs_answer
        Whether it is an error if Slurm does not answer; else the request and the profile have to
        give the shape then, and what the partition allows is not checked.
    meanwhile
        Called while Slurm answers.

    Raises
    ------
    ConfigError
        If the partition never starts it, or nothing says how many workers a node holds.
    LaunchError
        If Slurm does not answer.
    """
    name = scaling.slurm.partition or site.directives.get("partition")
    try:
        partition = query_partition(name, meanwhile=meanwhile)
    except LaunchError as error:
        if needs_answer:
            raise
        placement = place_workers(scaling, known_shape(site, NodeShape()))
        log(f"warning: the limits of the partition are not checked: {error}")
        return placement, NodeShape()
    except NoDefaultPartitionError as error:
        # A plugin of the site may choose one when the job is submitted.
        try:
            placement = place_workers(scaling, known_shape(site, NodeShape()))
        except ConfigError:
            raise error from None
        log(f"warning: the limits of the partition are not checked: {error}")
        return placement, NodeShape()
    qos = scaling.slurm.qos or site.directives.get("qos")
    refused: ConfigError | None = None
    found: list[tuple[Placement, Partition]] = []
    for larger in partition.of_larger_nodes(scaling, site):
        part = larger.that_allows(None if qos else scaling.slurm.time)
        shape = known_shape(site, part.node_shape)
        try:
            placement = place_workers(scaling, shape, num_nodes=part.num_nodes)
            check_partition(scaling, placement, part, qos=qos)
        except ConfigError as error:
            # It may fit on fewer nodes, larger ones.
            refused = refused or error
        else:
            found.append((placement, part))
    if not found:
        assert refused is not None
        raise refused
    # A job would wait for large nodes where they are rare; a few small ones do not count.
    most = [each for each in found if each[1].total_nodes > found[0][1].total_nodes / 2]
    # Which nodes a job leaves out itself, sinfo does not say.
    if scaling.placement_strategy == "SPREAD" or chooses_nodes(scaling, site):
        most = found[:1]
    placement, part = min(most, key=lambda each: each[0].num_nodes)
    return placement, part.node_shape


def check_partition(
    scaling: ScalingConfig, placement: Placement, partition: Partition, *, qos: str | None = None
) -> None:
    """Refuse what a partition never starts.

    Not collective. ``sbatch --test-only`` accepts a time limit above the partition's, and a
    partition that is down (measured with Slurm 22.05), so this is checked here.

    Parameters
    ----------
    qos
        The QOS of the job, which may lift the partition's time limit; None is the default one.

    Raises
    ------
    ConfigError
        With what would have to change.
    """
    if not partition.available:
        raise ConfigError(
            f"partition {partition.name} is down, so a job there would wait for ever. Others: "
            f"{', '.join(n for n in partition.others if n not in partition.name.split(','))}."
        )
    needed = node_range(scaling, placement).fewest
    if needed > partition.num_nodes:
        spare, most = scaling.slurm.spare_nodes, placement.max_tasks_per_node
        raise ConfigError(
            f"num_workers={placement.num_workers} needs {needed} nodes with at most "
            f"{counted(most, 'worker')} each"
            f"{f' and {spare} spare' if spare else ''}, but partition {partition.name} has "
            f"{partition.num_nodes}. Ask for fewer workers, or another partition."
        )
    # A QOS may lift the limit of the partition (PartitionTimeLimit), which sbatch knows.
    if scaling.slurm.time is not None and qos is None:
        asked, longest = time_limit_minutes(scaling.slurm.time), partition.longest
        if asked > longest.max_minutes:
            raise ConfigError(
                f"SlurmConfig(time={scaling.slurm.time!r}) is {asked:g} minutes, but partition "
                f"{partition.name} ends jobs after {longest.max_minutes:g} ({longest.max_time}). "
                f"Ask for less, or use another partition."
            )


def allocation_nodes(*, with_gpus: bool) -> dict[str, AllocatedNode]:
    """Return what the allocation that this process is in has of each of its nodes, by name.

    Not collective.

    Parameters
    ----------
    with_gpus
        Whether to ask Slurm's controller for the GPUs, which no variable gives for each node.

    Raises
    ------
    LaunchError
        If this process is not inside an allocation, or Slurm's controller does not answer.
    """
    hosts = allocated_hosts()
    gpus = _gpus_by_node() if with_gpus else {}
    return read_allocation(environ.environment(), hosts, gpus)


def _gpus_by_node() -> dict[str, int]:
    job = find_job(environ.variable("SLURM_JOB_ID") or "", with_details=True)
    groups = {} if job is None else job.gpus
    return {host: count for nodes, count in groups.items() for host in expand_hosts(nodes)}


def explain_refusal(said: str, scaling: ScalingConfig) -> str:
    """Return what sbatch's refusal means, and what to do. Pure; not collective."""
    slurm = scaling.slurm
    gpus = (
        "use_gpu=True: 'sinfo --format=\"%P %G\"' lists which partitions have GPUs, as GRES; name "
        "one with SlurmConfig(partition=...), or set use_gpu=False"
    )
    hints = (
        (
            r"(?i)generic resource|\bgres\b|trackable resource",
            f"{gpus}. Where nodes have them, gpu_request={slurm.gpu_request!r} may be no option of "
            f"this Slurm: try 'gres'"
            if scaling.use_gpu
            else "the GRES that sbatch_args ask for: 'sinfo -o %G' lists what nodes have",
        ),
        (
            r"[Ii]nvalid account|account/partition",
            f"account={slurm.account!r}, partition="
            f"{slurm.partition!r}: 'sacctmgr show associations user=$USER' lists what you may use",
        ),
        (r"[Ii]nvalid qos|QOS", f"qos={slurm.qos!r}: 'sacctmgr show qos' lists what there is"),
        (r"[Ii]nvalid partition", f"partition={slurm.partition!r}: 'sinfo' lists what there is"),
        (r"[Tt]ime limit", f"time={slurm.time!r}: ask for less, or use another partition or QOS"),
        (
            r"[Ii]nvalid feature|constraint",
            f"constraint={slurm.constraint!r}: 'sinfo -o %f' lists what nodes have",
        ),
        (r"reservation", f"reservation={slurm.reservation!r}: 'scontrol show reservation'"),
        (
            r"Requested node configuration|more processors|too many|not available",
            "no node of the partition ever has this much: ask for less of CPUs, GPUs or memory"
            + (f"; {gpus}" if scaling.use_gpu else ""),
        ),
    )
    hint = next((text for pattern, text in hints if re.search(pattern, said)), None)
    return f"Slurm refused the job: {said.strip()}." + (f" Look at {hint}." if hint else "")
