"""What a user asks for: frozen values that check themselves. No I/O, no environment.

The names are Ray Train's where Ray Train has the field and Slurm's where Slurm has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from os import PathLike, fspath
from typing import Any, Literal, get_args

from hpctrain.callback import UserCallback
from hpctrain.checks import (
    check_choice,
    check_count,
    check_seconds,
    check_text,
    check_type,
    fields_by_name,
    is_number,
    show_changes,
)
from hpctrain.errors import ConfigError
from hpctrain.slurm_config import GpuRequest as GpuRequest
from hpctrain.slurm_config import SlurmConfig as SlurmConfig
from hpctrain.slurm_config import time_limit_minutes as time_limit_minutes

PlacementStrategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
Launcher = Literal["auto", "local", "allocation", "slurm", "mpiexec", "spmd", "inline"]
ExistingPolicy = Literal["auto", "resume", "restart", "error"]
Stop = Mapping[str, float] | Callable[[int, Mapping[str, Any]], bool]

EXISTING_POLICIES: tuple[ExistingPolicy, ...] = get_args(ExistingPolicy)
LAUNCHERS: tuple[Launcher, ...] = get_args(Launcher)
_PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
# Whoever says less has said megabytes.
_MIN_BYTES_PER_S = 1e6
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")


@fields_by_name
@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """How many workers, and what each of them needs. One worker is one MPI rank."""

    num_workers: int | tuple[int, int] = 1
    """Number of ranks. 0 runs the training function in this interpreter, for a debugger. Two
    numbers are the fewest and the most that an elastic run goes on with when nodes are lost or come
    back; inside of the training function ``get_context().get_world_size()`` is the truth."""
    use_gpu: bool = False
    """Whether each worker has GPUs: one, unless `resources_per_worker` says otherwise."""
    resources_per_worker: Mapping[str, float] = field(default_factory=dict)
    """``{"CPU": 4, "GPU": 1, "memory": 8 * 2**30}``; memory is in bytes. The default is one CPU,
    and one GPU where `use_gpu` is set. Any other key is refused."""
    placement_strategy: PlacementStrategy = "PACK"
    """``PACK``: as few nodes as hold the workers. ``STRICT_PACK``: one node, or an error.
    ``SPREAD``: one worker on each node, as far as there are nodes. ``STRICT_SPREAD``: one worker on
    each node, or an error."""
    accelerator_type: str | None = None
    """Type of GPU, in the site's spelling: ``a100`` gives ``--gpus-per-node=a100:4``."""
    label_selector: Mapping[str, str] = field(default_factory=dict)
    """Features that every node must have; ``{"cpu": "milan"}`` gives ``--constraint=milan``."""
    trainer_resources: Mapping[str, float] = field(default_factory=dict)
    """Ray Train's resources of the coordinator. Here it runs beside the workers of the first node
    and needs next to nothing, so only an empty mapping or ``{"CPU": 0}`` is accepted."""
    elastic_resize_monitor_interval_s: float = 60.0
    """Seconds after which a run that is not at its full size looks again whether it can grow."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """What only Slurm knows of."""

    __repr__ = show_changes

    def __post_init__(self) -> None:
        """Check every field, and the fields against each other."""
        self._check_num_workers()
        check_type("ScalingConfig(use_gpu=...)", self.use_gpu, bool)
        check_type("ScalingConfig(slurm=...)", self.slurm, SlurmConfig)
        check_choice("ScalingConfig(placement_strategy=...)", self.placement_strategy, _PLACEMENTS)
        for name in ("resources_per_worker", "label_selector", "trainer_resources"):
            check_type(f"ScalingConfig({name}=...)", getattr(self, name), Mapping)
            object.__setattr__(self, name, dict(getattr(self, name)))
        resources = self.resources_per_worker
        unknown = sorted(set(resources) - {"CPU", "GPU", "memory"})
        if unknown:
            raise ConfigError(
                f"ScalingConfig(resources_per_worker=...) has the keys {unknown}. Slurm knows CPU, "
                f"GPU and memory (bytes); ask for anything else with SlurmConfig(sbatch_args=...)."
            )
        for key, amount in resources.items():
            if not is_number(amount) or amount < 0:
                raise ConfigError(
                    f"ScalingConfig(resources_per_worker={{{key!r}: {amount!r}}}): a number that "
                    f"is not negative is needed."
                )
            if amount != int(amount):
                raise ConfigError(
                    f"ScalingConfig(resources_per_worker={{{key!r}: {amount!r}}}): a rank has "
                    f"whole CPUs, GPUs and bytes. Use {int(amount) + 1}, or fewer workers."
                )
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
                f"ScalingConfig(accelerator_type={self.accelerator_type!r}) needs use_gpu=True."
            )
        if any(amount > 0 for amount in self.trainer_resources.values()):
            raise ConfigError(
                f"ScalingConfig(trainer_resources={dict(self.trainer_resources)}): the coordinator "
                f"has no allocation of its own; it runs on the first node beside the workers. Drop "
                f"it, or give the workers more with resources_per_worker."
            )

    def _check_num_workers(self) -> None:
        if not isinstance(self.num_workers, (tuple, list)):
            check_count("ScalingConfig(num_workers=...)", self.num_workers, at_least=0)
        elif len(self.num_workers) != 2:
            raise ConfigError(
                f"ScalingConfig(num_workers={self.num_workers!r}): one number, or the fewest and "
                f"the most workers, as in num_workers=(2, 4)."
            )
        else:
            fewest, most = self.num_workers
            check_count("ScalingConfig(num_workers=(fewest, ...))", fewest, at_least=1)
            check_count("ScalingConfig(num_workers=(..., most))", most, at_least=1)
            if most < fewest:
                raise ConfigError(
                    f"ScalingConfig(num_workers=({fewest}, {most})): the fewest workers come "
                    f"first, then the most: num_workers=({most}, {fewest})."
                )
            # Two equal numbers are a fixed size.
            object.__setattr__(self, "num_workers", (fewest, most) if fewest < most else most)
        interval = self.elastic_resize_monitor_interval_s
        if not is_number(interval) or interval <= 0:
            raise ConfigError(
                f"ScalingConfig(elastic_resize_monitor_interval_s={interval!r}): seconds, more "
                f"than 0."
            )

    @property
    def elasticity_enabled(self) -> bool:
        """Whether the number of workers can change while the run lasts."""
        return self.min_workers < self.max_workers

    @property
    def min_workers(self) -> int:
        """The fewest workers that the run goes on with."""
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
        """Memory of one worker, or None where the site's default is wanted."""
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


@fields_by_name
@dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """How many failures a run may survive before it gives up; -1 is without end.

    They are counted over all jobs of a run, from the last ``fit()`` that a person called. Whatever
    the budgets, a run that fails five times in a row without a newer checkpoint is stopped.
    """

    max_failures: int = 0
    """Restarts after a failed rank, from the newest checkpoint."""
    controller_failure_limit: int = -1
    """Restarts after ranks could not be started for a passing reason, or their executor died."""
    max_preemption_failures: int = -1
    """Restarts after the job was preempted, requeued, or taken away in another way. The end of the
    time limit does not count."""
    hang_timeout: float | None = None
    """Seconds without progress after which a rank hangs: the stacks of all ranks are written down,
    and they are ended, which counts as a failed rank. Progress is a report, a change of phase, or
    `hpctrain.heartbeat`, so it has to be longer than the longest step, validation and checkpoint.
    None ends nothing; after half an hour the stacks are written all the same."""
    start_timeout: float = 1800.0
    """Seconds that each of the phases around the training function may take: the start of the ranks
    up to their MPI world, imports, the set-up of the backend and its end. While a preprocessor is
    fitted, each batch of a rank is progress, and a rank may wait so long for the others."""
    node_timeout_s: float = 30.0
    """Seconds of silence after which a node is given up; its agent says something every two."""

    __repr__ = show_changes

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("max_failures", "controller_failure_limit", "max_preemption_failures"):
            check_count(f"FailureConfig({name}=...)", getattr(self, name), at_least=-1)
        if self.hang_timeout is not None:
            check_seconds("FailureConfig(hang_timeout=...)", self.hang_timeout)
        check_seconds("FailureConfig(start_timeout=...)", self.start_timeout)
        if not is_number(self.node_timeout_s) or self.node_timeout_s < 5:
            raise ConfigError(
                f"FailureConfig(node_timeout_s={self.node_timeout_s!r}): seconds, 5 or more. Less "
                f"would give up nodes that are only busy."
            )


@fields_by_name
@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints are kept."""

    num_to_keep: int | None = None
    """How many; None keeps all, unless `keep_every_s` is given. The newest is never deleted, even
    if it is the worst."""
    checkpoint_score_attribute: str | None = None
    """Metric by which the best are kept; None keeps the newest. ``a/b`` is the metric of that name,
    else ``b`` inside the mapping ``a``. A checkpoint without the metric, or with a score that is
    not finite, ranks last. A name that the first checkpoint does not have is refused then."""
    checkpoint_score_order: Literal["max", "min"] = "max"
    """Whether large or small scores are better."""
    keep_every_s: float | None = None
    """Seconds. One checkpoint of each such interval is kept for good, beside the `num_to_keep`."""
    checkpoint_frequency: int = 0
    """Rounds, or epochs, between two checkpoints where the trainer has the loop; 0 is none. A
    training function of the user's saves when it wants to."""
    checkpoint_at_end: bool | None = None
    """Whether a trainer that has the loop saves after the last round. None is yes."""

    __repr__ = show_changes

    def __post_init__(self) -> None:
        """Check every field."""
        if self.checkpoint_score_attribute is not None:
            check_text(
                "CheckpointConfig(checkpoint_score_attribute=...)", self.checkpoint_score_attribute
            )
        check_count(
            "CheckpointConfig(checkpoint_frequency=...)", self.checkpoint_frequency, at_least=0
        )
        if self.checkpoint_at_end is not None:
            check_type("CheckpointConfig(checkpoint_at_end=...)", self.checkpoint_at_end, bool)
        if self.keep_every_s is not None and not (
            is_number(self.keep_every_s) and self.keep_every_s > 0
        ):
            raise ConfigError(
                f"CheckpointConfig(keep_every_s={self.keep_every_s!r}): seconds, more than 0, or "
                f"None."
            )
        check_count(
            "CheckpointConfig(num_to_keep=...)", self.num_to_keep, at_least=1, optional=True
        )
        check_choice(
            "CheckpointConfig(checkpoint_score_order=...)",
            self.checkpoint_score_order,
            ("max", "min"),
        )


@fields_by_name
@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """How checkpoints and artifacts reach the run directory."""

    sync_timeout: float = 1800.0
    """Seconds that a checkpoint may be under way. A rank waits that long in ``report()`` for it to
    be committed, which takes as long as the slowest rank needs to report. Then it fails, and says
    what it waited for."""
    scratch_dir: str | PathLike[str] | None = None
    """Directory on each node's own disk, such as ``"$TMPDIR"``; variables are those of the rank.
    `hpctrain.checkpoint_dir` then leads there, and ``report()`` copies from there into the run
    directory, behind the training function with ``ASYNC``."""
    sync_artifacts: bool = False
    """Whether `hpctrain.artifact_dir` leads to `scratch_dir` too. What is new there is copied to
    ``artifacts/`` behind the training function, with each checkpoint and at the end. Without a
    `scratch_dir` artifacts are written where they belong, and nothing has to be copied."""
    max_writers: int | None = None
    """Ranks of the whole job that may write their parts of a checkpoint at the same time; the
    others wait for their turn, and have to get it within `sync_timeout`. None lets all write. It
    is for what ``report()`` and `hpctrain.torch.report_state` write, not for what a training
    function writes into `hpctrain.checkpoint_dir`, which is only made durable in its turn."""
    max_bytes_per_s: float | None = None
    """Bytes a second at which each rank copies checkpoints and artifacts, from `scratch_dir` or
    from a directory of its own; None is as fast as it can. With `max_writers` the job as a whole
    copies at most at the product of the two."""

    __repr__ = show_changes

    def __post_init__(self) -> None:
        """Check every field."""
        check_count("SyncConfig(max_writers=...)", self.max_writers, at_least=1, optional=True)
        if self.max_bytes_per_s is not None and (
            not is_number(self.max_bytes_per_s) or self.max_bytes_per_s < _MIN_BYTES_PER_S
        ):
            raise ConfigError(
                f"SyncConfig(max_bytes_per_s={self.max_bytes_per_s!r}): bytes a second of each "
                f"rank, {_MIN_BYTES_PER_S:.0e} or more; None is as fast as it can."
            )
        if not is_number(self.sync_timeout) or self.sync_timeout <= 0:
            raise ConfigError(
                f"SyncConfig(sync_timeout={self.sync_timeout!r}): seconds, more than 0."
            )
        if self.scratch_dir is not None:
            check_type("SyncConfig(scratch_dir=...)", self.scratch_dir, str, PathLike)
            object.__setattr__(self, "scratch_dir", fspath(self.scratch_dir))
            check_text("SyncConfig(scratch_dir=...)", self.scratch_dir)
        check_type("SyncConfig(sync_artifacts=...)", self.sync_artifacts, bool)


@fields_by_name
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which datasets are shared out over the ranks; every rank sees the whole of the others."""

    datasets_to_split: Literal["all"] | Sequence[str] = "all"
    """``"all"``, or the names of those to split."""

    __repr__ = show_changes

    def __post_init__(self) -> None:
        """Check every field."""
        names = self.datasets_to_split
        if names == "all":
            return
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise ConfigError(
                f"DataConfig(datasets_to_split={names!r}): 'all', or a list of dataset names."
            )
        object.__setattr__(self, "datasets_to_split", tuple(names))


@fields_by_name
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What the run is called, where it lands, and how it is looked after."""

    name: str | None = None
    """Name of the run; with `storage_path` it identifies it. ``fit()`` again with the same two
    follows, resumes, or returns the stored result. None makes a new name."""
    storage_path: str | PathLike[str] = "hpctrain_runs"
    """Directory of runs. On a cluster it has to be on a filesystem that every node sees."""
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    """How many failures the run may survive."""
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Which checkpoints are kept."""
    sync_config: SyncConfig = field(default_factory=SyncConfig)
    """How checkpoints reach the run directory."""
    total_time: str | int | timedelta | None = None
    """How long the run may run, over all its jobs, in the forms of ``SlurmConfig(time=...)``. None
    is without a limit: a run whose job ends goes on in another one until it is finished."""
    callbacks: Sequence[UserCallback] = ()
    """Hooks that run in the executor."""
    stop: Stop | None = None
    """When to stop: ``{"accuracy": 0.99}`` (reached or passed; ``a/b`` looks inside mappings; a
    name that the first report does not have is refused then), or a function of the report's number
    and rank 0's metrics. Training functions see it through ``should_stop()``."""
    verbose: int = 1
    """0: nothing. 1: progress, and what rank 0 prints. 2: what every rank prints."""
    log_to_file: bool = True
    """Whether the output of a rank goes to a file of its own in the run directory. Otherwise it
    goes wherever the output of the launcher goes."""
    launcher: Launcher = "auto"
    """Where the ranks start; ``auto`` finds out. ``--launcher`` and ``HPCTRAIN_LAUNCHER``, which
    are said later, win over this."""
    existing: ExistingPolicy = "auto"
    """What ``fit()`` does with a run of this name that is over. ``auto`` resumes one that was
    interrupted, returns the result of one that is finished, and refuses to if this ``fit()`` asks
    for something else. ``resume`` goes on from its last checkpoint then. ``restart`` moves the run
    aside and begins anew. ``error`` accepts no run of this name. ``--existing`` and
    ``HPCTRAIN_EXISTING`` win over this."""

    __repr__ = show_changes

    def __post_init__(self) -> None:
        """Check every field."""
        if self.name is not None and not _RUN_NAME.fullmatch(self.name):
            raise ConfigError(
                f"RunConfig(name={self.name!r}): a run is a directory and a Slurm job name. Use 1 "
                f"to 128 letters, digits, '.', '_', '+' or '-', beginning with a letter or digit."
            )
        check_type("RunConfig(storage_path=...)", self.storage_path, str, PathLike)
        object.__setattr__(self, "storage_path", fspath(self.storage_path))
        if "://" in str(self.storage_path):
            raise ConfigError(
                f"RunConfig(storage_path={self.storage_path!r}) is a URL. Runs live on a "
                f"filesystem that all nodes share: give a directory there."
            )
        check_type("RunConfig(failure_config=...)", self.failure_config, FailureConfig)
        check_type("RunConfig(checkpoint_config=...)", self.checkpoint_config, CheckpointConfig)
        check_type("RunConfig(sync_config=...)", self.sync_config, SyncConfig)
        check_type("RunConfig(callbacks=...)", self.callbacks, Sequence)
        for callback in self.callbacks:
            check_type("RunConfig(callbacks=[...])", callback, UserCallback)
        object.__setattr__(self, "callbacks", tuple(self.callbacks))
        if self.total_time is not None:
            time_limit_minutes(self.total_time, what="RunConfig(total_time=...)")
        if self.stop is not None and not callable(self.stop):
            check_type("RunConfig(stop=...)", self.stop, Mapping)
        check_choice("RunConfig(verbose=...)", self.verbose, (0, 1, 2))
        check_type("RunConfig(log_to_file=...)", self.log_to_file, bool)
        check_choice("RunConfig(launcher=...)", self.launcher, LAUNCHERS)
        check_choice("RunConfig(existing=...)", self.existing, EXISTING_POLICIES)
