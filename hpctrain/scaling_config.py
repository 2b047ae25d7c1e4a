"""`ScalingConfig`: how many workers, and what each of them needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpctrain.checks import check_count, check_type, did_you_mean, is_number, show_changes, shown
from hpctrain.errors import ConfigError
from hpctrain.log import log_once
from hpctrain.rules import (
    checked,
    choice,
    kind,
    line,
    mapping,
    optional,
    or_default,
    seconds,
    with_value,
)
from hpctrain.slurm_config import SlurmConfig

PlacementStrategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]

_PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def _num_workers(what: str, value: Any) -> Any:
    if not isinstance(value, (tuple, list)):
        check_count(what, value, at_least=0)
        return value
    if len(value) != 2:
        raise ConfigError(
            f"{with_value(what, value)}: one number, or the fewest and the most workers, as in "
            f"num_workers=(2, 4)."
        )
    fewest, most = value
    check_count(what.replace("...", "(fewest, ...)"), fewest, at_least=1)
    check_count(what.replace("...", "(..., most)"), most, at_least=1)
    if most < fewest:
        raise ConfigError(
            f"ScalingConfig(num_workers=({fewest}, {most})): the fewest workers come "
            f"first, then the most: num_workers=({most}, {fewest})."
        )
    # Two equal numbers are a fixed size.
    return (fewest, most) if fewest < most else most


def _resource(what: str, amount: Any) -> Any:
    if not is_number(amount) or amount < 0:
        raise ConfigError(f"{with_value(what, amount)}: a number that is not negative is needed.")
    if amount != int(amount):
        raise ConfigError(
            f"{with_value(what, amount)}: a rank has whole CPUs, GPUs and bytes. Use "
            f"{int(amount) + 1}, or fewer workers."
        )
    if amount >= 2**63:
        raise ConfigError(f"{with_value(what, amount)}: no node has that much. Request less.")
    return amount


def _resources(what: str, value: Any) -> Any:
    check_type(what, value, Mapping)
    if unknown := sorted(map(str, set(value) - {"CPU", "GPU", "memory"})):
        meant = did_you_mean(unknown[0], ["CPU", "GPU", "memory"])
        raise ConfigError(
            f"{what} has the keys {unknown}. Slurm has CPU, GPU and memory (bytes); request "
            f"anything else with SlurmConfig(sbatch_args=...)." + (f" {meant}" if meant else "")
        )
    return mapping(rule=_resource)(what, value)


@checked(
    num_workers=_num_workers,
    use_gpu=or_default(kind(bool)),
    resources_per_worker=or_default(_resources),
    placement_strategy=or_default(choice(*_PLACEMENTS)),
    accelerator_type=optional(line(otherwise="or None for any type")),
    label_selector=or_default(mapping(rule=line(otherwise="the name of a feature"))),
    trainer_resources=or_default(mapping(rule=_resource)),
    elastic_resize_monitor_interval_s=seconds,
    slurm=or_default(kind(SlurmConfig)),
)
@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """How many workers, and the resources of each. One worker is one MPI rank."""

    num_workers: int | tuple[int, int] = 1
    """Number of ranks. 0 runs the training function in this interpreter, for a debugger. Two
    numbers are the minimum and the maximum of an elastic run, which continues when nodes are lost
    or return; inside the training function ``get_context().get_world_size()`` is the current
    number."""
    use_gpu: bool = False
    """Whether each worker has GPUs: one, unless `resources_per_worker` sets another number."""
    resources_per_worker: Mapping[str, float] = field(default_factory=dict)
    """``{"CPU": 4, "GPU": 1, "memory": 8 * 2**30}``; memory is in bytes. The default is one CPU,
    and one GPU where `use_gpu` is set. Any other key is refused."""
    placement_strategy: PlacementStrategy = "PACK"
    """``PACK``: as few nodes as possible. ``STRICT_PACK``: one node, or an error. ``SPREAD``: one
    worker on each node, if there are enough nodes. ``STRICT_SPREAD``: one worker on each node, or
    an error."""
    accelerator_type: str | None = None
    """Type of GPU, in the site's spelling: ``a100`` gives ``--gpus-per-node=a100:4``."""
    label_selector: Mapping[str, str] = field(default_factory=dict)
    """Features that every node must have; ``{"cpu": "milan"}`` gives ``--constraint=milan``."""
    trainer_resources: Mapping[str, float] = field(default_factory=dict)
    """Ray Train's resources of the coordinator. Here it shares the first node with workers and
    needs almost no resources: CPUs and memory are only logged, GPUs refused."""
    elastic_resize_monitor_interval_s: float = 60.0
    """Seconds between two checks whether a run below its full size can grow."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """Settings that only Slurm needs."""

    __repr__ = show_changes

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        resources = self.resources_per_worker
        if resources.get("CPU", 1) < 1:
            raise ConfigError(
                "ScalingConfig(resources_per_worker={'CPU': 0}): a rank is a process and needs at "
                "least one CPU. Leave CPU out, or ask for 1."
            )
        if resources.get("GPU", 0) and not self.use_gpu:
            raise ConfigError(
                f"ScalingConfig(use_gpu=False) with resources_per_worker GPU={resources['GPU']}. "
                f"GPUs are only given to workers that use them: set use_gpu=True, or drop GPU."
            )
        if self.use_gpu and resources.get("GPU", 1) == 0:
            raise ConfigError(
                "ScalingConfig(use_gpu=True) with resources_per_worker GPU=0. Set use_gpu=False, "
                "or ask for at least one GPU."
            )
        if self.accelerator_type is not None and not self.use_gpu:
            raise ConfigError(
                f"ScalingConfig(accelerator_type={shown(self.accelerator_type)}) needs "
                f"use_gpu=True."
            )
        if self.trainer_resources.get("GPU", 0) > 0:
            raise ConfigError(
                f"ScalingConfig(trainer_resources={dict(self.trainer_resources)}): only workers "
                f"have GPUs. Drop it, and set use_gpu=True."
            )
        if any(self.trainer_resources.values()):
            log_once(
                f"ScalingConfig(trainer_resources={dict(self.trainer_resources)}) has no effect "
                f"here: the coordinator shares the first node with workers. "
                f"resources_per_worker gives the workers more."
            )

    @property
    def elasticity_enabled(self) -> bool:
        """Whether the number of workers can change during the run."""
        return self.min_workers < self.max_workers

    @property
    def min_workers(self) -> int:
        """The fewest workers with which the run continues."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]

    @property
    def max_workers(self) -> int:
        """Workers of the run at its full size."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]

    @property
    def num_cpus_per_worker(self) -> int:
        """CPUs of one worker."""
        return int(self.resources_per_worker.get("CPU", 1))

    @property
    def num_gpus_per_worker(self) -> int:
        """GPUs of one worker."""
        return int(self.resources_per_worker.get("GPU", 1)) if self.use_gpu else 0

    @property
    def mem_bytes_per_worker(self) -> int | None:
        """Memory of one worker, or None for the site's default."""
        mem = self.resources_per_worker.get("memory")
        return None if mem is None else int(mem)

    @property
    def total_resources(self) -> dict[str, int]:
        """CPUs and GPUs of all workers together, at full size."""
        workers = max(self.max_workers, 1)
        total = {"CPU": self.num_cpus_per_worker * workers}
        if self.use_gpu:
            total["GPU"] = self.num_gpus_per_worker * workers
        return total


# Pickles and digests of training functions have it by this name.
ScalingConfig.__module__ = "hpctrain.config"
