"""Where a sweep runs: the machine that has its trials, and its directory, held by one process."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shlex
import time
from collections.abc import Iterator

from hpctrain.config import RunConfig, ScalingConfig
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.launch.claim import claimed, find_claim
from hpctrain.launch.fit import refuse_nested_fit
from hpctrain.launch.request import choose_launcher
from hpctrain.launch.storage import errors_of_storage
from hpctrain.log import log
from hpctrain.own_files import DIRECTORY_MODE
from hpctrain.rundir.paths import RunPaths
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.slots import Capacity
from hpctrain.worker.bootstrap import visible_gpus

_SECONDS_OF_A_CLAIM = 5.0


@contextlib.contextmanager
def held(paths: SweepPaths) -> Iterator[None]:
    """Hold a sweep for the time of the block: no other process runs it. Not collective.

    Raises
    ------
    ConfigError
        If another process runs it, or its directory cannot be written.
    """
    root = RunPaths(paths.root)
    if paths.events.exists() and (claim := find_claim(root)) is not None:
        owner = json.loads(claim.owner)
        raise ConfigError(
            f"process {owner['pid']} on {owner['host']} runs the sweep {paths.root}. Look at it "
            f"with: hpctrain tune status {shlex.quote(str(paths.root))}"
        )
    with errors_of_storage(root):
        try:
            stack = contextlib.ExitStack()
            stack.enter_context(claimed(root, patience_s=_SECONDS_OF_A_CLAIM))
        except LaunchError as error:
            raise ConfigError(f"another process begins the sweep {paths.root}.") from error
    with stack:
        yield


def begin_anew(paths: SweepPaths) -> None:
    """Move an earlier sweep out of the way, into a directory beside it. Not collective."""
    # The directory itself stays, which is held.
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = paths.root.with_name(f"{paths.root.name}.{stamp}-{secrets.token_hex(2)}")
    aside.mkdir(DIRECTORY_MODE)
    for entry in sorted(paths.root.iterdir()):
        if not entry.name.startswith(".claim"):
            os.rename(entry, aside / entry.name)
    log(f"beginning sweep {paths.root.name} anew; the earlier one was moved to {aside}")


def find_capacity(most_trials: int | None) -> Capacity:
    """Return what this machine has for trials. Not collective."""
    return Capacity(
        cpus=len(os.sched_getaffinity(0)),
        gpus=visible_gpus(),
        mem_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        most_trials=most_trials or math.inf,
    )


def refuse_other_homes(run_config: RunConfig) -> None:
    """Refuse where a sweep cannot start its trials. Not collective.

    Raises
    ------
    ConfigError
        If this process is a rank, or on a login node of Slurm.
    """
    refuse_nested_fit("Tuner.fit")
    launcher = choose_launcher(ScalingConfig(), run_config)
    if launcher == "spmd":
        raise ConfigError(
            "this process is one of several ranks, and a sweep starts its trials itself. Start the "
            "script once, without srun or mpiexec."
        )
    if launcher == "slurm":
        raise ConfigError(
            "a sweep runs its trials on this machine, and this is a login node of Slurm. Start the "
            "script in an allocation (sbatch or salloc) or, if trials may run here, with "
            "RunConfig(launcher='local')."
        )
    if launcher == "mpiexec":
        log("note: a sweep runs its trials on this machine, and leaves the other hosts alone.")
