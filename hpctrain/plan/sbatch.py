"""The directives of a batch job."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping

from hpctrain.errors import ConfigError
from hpctrain.plan.resources import Placement, node_range
from hpctrain.plan.sbatch_options import CHOOSE_NODES, merge_directives, parse_sbatch_args
from hpctrain.plan.site import Site
from hpctrain.scaling_config import ScalingConfig
from hpctrain.slurm_config import SlurmConfig, format_time_limit

# A run on several nodes needs --nodes, and hpctrain finds its job by --job-name; the error explains
# the others.
_NOT_SKIPPED = ("nodes", "job-name", "output", "open-mode", "signal")
_MEMORY_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


def make_directives(
    scaling: ScalingConfig, placement: Placement, site: Site, *, job_name: str
) -> dict[str, str | None]:
    """Return the sbatch options of a run, without dashes; None is a switch.

    Not collective. The user's options override those of the site profile; the ``skip_directives``
    of both are left out. Each option occurs once.

    Raises
    ------
    ConfigError
        If the request contradicts itself, or Slurm has no option for it.
    """
    slurm = scaling.slurm
    nodes = node_range(scaling, placement)
    directives: dict[str, str | None] = {"job-name": job_name, "nodes": str(nodes)}
    if nodes.survives_loss:
        # Without it Slurm ends the job when a node is lost, and requeues it.
        directives["no-kill"] = None
    if nodes.fewest == nodes.most:
        directives["ntasks-per-node"] = str(placement.max_tasks_per_node)
        directives["cpus-per-task"] = str(placement.cpus_per_task)
    else:
        # A number of tasks would be that of the fewest nodes, and then Slurm gives no more of them
        # (measured with 22.05). So to the job a node is one task, with the CPUs of all its workers.
        directives["cpus-per-task"] = str(placement.cpus_per_task * placement.max_tasks_per_node)
    directives.update(_gpu_directives(scaling, placement, site))
    directives = merge_directives(
        directives, {name: value or None for name, value in site.directives.items()}
    )
    if placement.gpus_per_task == 0:
        directives.pop("mem-per-gpu", None)
    memory = _memory_directive(slurm, placement)
    if memory is not None:
        directives = merge_directives(directives, {"mem": memory})
    if slurm.time is not None:
        directives["time"] = format_time_limit(slurm.time)
    for name in ("partition", "qos", "reservation"):
        value = getattr(slurm, name)
        if value is not None:
            directives[name] = value
    if slurm.account is not None:
        directives["account"] = site.complete_account(slurm.account)
    constraint = _constraint(scaling, site)
    if constraint is not None:
        directives["constraint"] = constraint
    if slurm.exclusive:
        directives["exclusive"] = None
    for name in (*site.skip_directives, *slurm.skip_directives):
        option = name.lstrip("-")
        if option in _NOT_SKIPPED:
            raise ConfigError(
                f"skip_directives holds {name!r}, but a run needs --nodes, is found by --job-name "
                f"and --output, keeps its log by --open-mode, and stops before its time limit by "
                f"--signal. Leave out only other options."
            )
        directives.pop(option, None)
    directives = merge_directives(directives, parse_sbatch_args(slurm.sbatch_args))
    _refuse_lines(directives)
    return directives


def chooses_nodes(scaling: ScalingConfig, site: Site) -> bool:
    """Return whether a job leaves out nodes of its partition that would be large enough.

    Not collective.

    Raises
    ------
    ConfigError
        If the request contradicts itself.
    """
    slurm = scaling.slurm
    options = {*site.directives, *parse_sbatch_args(slurm.sbatch_args)}
    values = (scaling.accelerator_type, scaling.label_selector, slurm.constraint, slurm.reservation)
    return any(values) or not options.isdisjoint(CHOOSE_NODES)


def _refuse_lines(directives: Mapping[str, str | None]) -> None:
    """Refuse values that would span several lines of the batch script."""
    for name, value in directives.items():
        if value is not None and not value.isprintable():
            raise ConfigError(
                f"--{name}={value!r} would be more than one line of the batch script, or hide a "
                f"part of it. Leave line breaks and other control characters out."
            )


def directive_lines(directives: Mapping[str, str | None]) -> list[str]:
    """Return the ``#SBATCH`` lines of a script. Not collective."""
    # sbatch removes quotes as a shell does, and without them a value ends at a space or a '#'.
    return [
        f"#SBATCH --{name}" if value is None else f"#SBATCH --{name}={shlex.quote(value)}"
        for name, value in escape_directives(directives).items()
    ]


def escape_directives(directives: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return directives as a script needs them, before quoting. Not collective."""
    # Unlike a shell, sbatch removes a backslash between single quotes too.
    return {
        name: None if value is None else value.replace("\\", "\\\\")
        for name, value in directives.items()
    }


def option_words(directives: Mapping[str, str | None]) -> list[str]:
    """Return directives as words of a command line. Not collective."""
    return [
        f"--{name}" if value is None else f"--{name}={value}" for name, value in directives.items()
    ]


def _gpu_directives(scaling: ScalingConfig, placement: Placement, site: Site) -> dict[str, str]:
    if placement.gpus_per_task == 0:
        return {}
    request: str = scaling.slurm.gpu_request
    if request == "auto":
        request = site.gpu_request
    kind = f"{scaling.accelerator_type}:" if scaling.accelerator_type else ""
    on_node = f"{kind}{placement.gpus_per_node}"
    if request == "gres":
        return {"gres": f"gpu:{on_node}"}
    nodes = node_range(scaling, placement)
    if request == "gpus-per-task" and nodes.fewest == nodes.most:
        return {"gpus-per-task": f"{kind}{placement.gpus_per_task}"}
    directives = {"gpus-per-node": on_node}
    # The total must be known beforehand.
    if request == "gpus" and nodes.fewest == nodes.most:
        total = f"{kind}{placement.gpus_per_node * nodes.most}"
        # With --gpus=4 alone, two nodes with room get 3 and 1 (measured with Slurm 22.05).
        return {"gpus": total, **(directives if nodes.most > 1 else {})}
    return directives


def memory_of_node(
    directives: Mapping[str, str | None], placement: Placement, *, job_cpus: int
) -> int | None:
    """Return how many MiB of a node a job asks for; None for the default, or all of it.

    Not collective.

    Parameters
    ----------
    directives
        Options of sbatch, without dashes.
    placement
        How its workers lie on the nodes.
    job_cpus
        CPUs of the job on each node.
    """
    number_of = {"mem": 1, "mem-per-cpu": job_cpus, "mem-per-gpu": placement.gpus_per_node}
    for name, number in number_of.items():
        if (mib := _mib(directives.get(name) or "")) is not None:
            return math.ceil(mib * number) or None
    return None


def _mib(text: str) -> float | None:
    """Return an amount of memory as sbatch reads it, in MiB; None for what it does not read."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text, re.IGNORECASE)
    return None if match is None else int(match[1]) * _MEMORY_UNITS[match[2].upper() or "M"]


def _memory_directive(slurm: SlurmConfig, placement: Placement) -> str | None:
    needed_mib = placement.mem_mib_per_node
    if slurm.mem is None:
        return None if needed_mib is None else f"{needed_mib}M"
    given_mib = _mib(slurm.mem)
    if given_mib is None:
        raise ConfigError(
            f"SlurmConfig(mem={slurm.mem!r}): Slurm reads a whole number and K, M, G or T, such as "
            f"'120G'; '0' is all of a node's."
        )
    if needed_mib is not None and 0 < given_mib < needed_mib:
        raise ConfigError(
            f"SlurmConfig(mem={slurm.mem!r}) is the memory of a node, but its "
            f"{placement.max_tasks_per_node} workers need {needed_mib} MiB "
            f"(resources_per_worker memory). Drop one of the two, or set mem='{needed_mib}M'."
        )
    return slurm.mem


def _constraint(scaling: ScalingConfig, site: Site) -> str | None:
    base = scaling.slurm.constraint or site.directives.get("constraint")
    labels = [_label_constraint(key, value) for key, value in scaling.label_selector.items()]
    parts = [part for part in (base, *labels) if part]
    if len(parts) < 2:
        return parts[0] if parts else None
    # Slurm reads '&' and '|' from left to right; neither binds closer.
    return "&".join(f"({p})" if "|" in re.sub(r"[\[(].*?[\])]", "", p) else p for p in parts)


def _label_constraint(key: str, value: str) -> str:
    match = re.fullmatch(r"in\((.*)\)", value)
    features = [part.strip() for part in match[1].split(",")] if match else [value]
    for feature in features:
        if not re.fullmatch(r"[\w.:+-]+", feature):
            raise ConfigError(
                f"label_selector={{{key!r}: {value!r}}}: a node has a Slurm feature or has it not, "
                f"so a value is a feature, or 'in(one,another)'. 'sinfo -o %f' lists them; exclude "
                f"nodes with SlurmConfig(sbatch_args=['--exclude=...'])."
            )
    return "|".join(features)
