"""The directives of a batch job."""

from __future__ import annotations

from collections.abc import Mapping

from hpctrain.config import ScalingConfig, SlurmConfig, time_limit_minutes
from hpctrain.plan.resources import Placement
from hpctrain.plan.site import Site


def make_directives(
    scaling: ScalingConfig, placement: Placement, site: Site, *, job_name: str
) -> dict[str, str | None]:
    """Return the sbatch options of a run, without dashes; None is a switch.

    Not collective. What the user says wins over what the site profile says; what either says in
    ``skip_directives`` is left out.
    """
    slurm = scaling.slurm
    directives: dict[str, str | None] = dict(site.directives)
    directives.update({"job-name": job_name, "nodes": str(placement.num_nodes)})
    directives["ntasks-per-node"] = str(placement.tasks_per_node)
    directives["cpus-per-task"] = str(placement.cpus_per_task)
    directives.update(_gpu_directive(scaling, placement, site))
    directives.update(_memory_directive(slurm, placement))
    if slurm.time is not None:
        directives["time"] = _slurm_time(slurm)
    for name in ("partition", "account", "qos", "reservation"):
        value = getattr(slurm, name)
        if value is not None:
            directives[name] = value
    constraint = [c for c in (slurm.constraint, *scaling.label_selector.values()) if c]
    if constraint:
        directives["constraint"] = "&".join(constraint)
    if slurm.exclusive:
        directives["exclusive"] = None
    for name in (*site.skip_directives, *slurm.skip_directives):
        directives.pop(name.lstrip("-"), None)
    return directives


def directive_lines(directives: Mapping[str, str | None], extra: tuple[str, ...]) -> list[str]:
    """Return the ``#SBATCH`` lines of a script. Not collective."""
    lines = [
        f"#SBATCH --{name}" if value is None else f"#SBATCH --{name}={value}"
        for name, value in directives.items()
    ]
    return lines + [f"#SBATCH {option}" for option in extra]


def _gpu_directive(scaling: ScalingConfig, placement: Placement, site: Site) -> dict[str, str]:
    if placement.gpus_per_task == 0:
        return {}
    request = scaling.slurm.gpu_request
    if request == "auto":
        request = site.gpu_request
    kind = f"{scaling.accelerator_type}:" if scaling.accelerator_type else ""
    total = placement.gpus_per_node * placement.num_nodes
    return {
        "gpus-per-node": {"gpus-per-node": f"{kind}{placement.gpus_per_node}"},
        "gpus-per-task": {"gpus-per-task": f"{kind}{placement.gpus_per_task}"},
        "gres": {"gres": f"gpu:{kind}{placement.gpus_per_node}"},
        "gpus": {"gpus": f"{kind}{total}"},
    }[request]


def _memory_directive(slurm: SlurmConfig, placement: Placement) -> dict[str, str]:
    if slurm.mem is not None:
        return {"mem": slurm.mem}
    if placement.mem_mib_per_node is not None:
        return {"mem": f"{placement.mem_mib_per_node}M"}
    return {}


def _slurm_time(slurm: SlurmConfig) -> str:
    if isinstance(slurm.time, str):
        return slurm.time
    assert slurm.time is not None
    minutes = time_limit_minutes(slurm.time)
    whole = int(minutes)
    return f"{whole}:{round((minutes - whole) * 60):02d}"
