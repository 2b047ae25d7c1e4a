"""Where a sweep runs: what has room for its trials, and its directory, held by one process."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from hpctrain import environ, timeouts
from hpctrain.config import RunConfig, ScalingConfig
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.home import Home
from hpctrain.launch.claim import claimed, find_claim, release_claim
from hpctrain.launch.fit import refuse_nested_fit
from hpctrain.launch.request import choose_launcher, current_home
from hpctrain.launch.storage import errors_of_storage
from hpctrain.log import log
from hpctrain.own_files import DIRECTORY_MODE
from hpctrain.plan.allocation import AllocatedNode
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import scan_lines
from hpctrain.slurm.output import read_allocation
from hpctrain.tune.ledger import SweepPaths, SweepRecord, has_sweep, is_event
from hpctrain.tune.node_slots import NodeShare, NodeSlots
from hpctrain.tune.person_stops import read_stop_request
from hpctrain.tune.slots import Capacity, Slots
from hpctrain.tune.trial import name_trial
from hpctrain.tune.tune_config import TuneConfig
from hpctrain.tune.tuner_life import LeftSweeps, TunerLife, has_life, shown_alive
from hpctrain.worker.bootstrap import visible_gpus

TrialLauncher = Literal["local", "allocation", "slurm"]
"""How trials start: ``local``, ``allocation`` on the nodes of one, ``slurm`` as jobs."""
_LEFT = LeftSweeps()
_OF_FILESYSTEM = frozenset(
    {errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EROFS, errno.ESTALE}
)


@contextlib.contextmanager
def held(
    paths: SweepPaths, *, meanwhile: Callable[[], object] = lambda: None
) -> Iterator[TunerLife]:
    """Hold a sweep for the time of the block: no other process runs it. Not collective.

    A tuner of another host that shows no sign of life does not hold it any more.

    Parameters
    ----------
    meanwhile
        Called again and again as long as that is waited for.

    Raises
    ------
    ConfigError
        If another process runs it, or its directory cannot be written.
    """
    root = RunPaths(paths.root)
    claim = find_claim(root) if paths.events.exists() else None
    if claim is not None and not has_life(paths, claim, meanwhile=meanwhile):
        release_claim(root, claim)
        claim = None
    if claim is not None:
        owner = json.loads(claim.owner)
        raise ConfigError(
            f"process {owner['pid']} on {owner['host']} runs the sweep {paths.root}. Look at it "
            f"with: hpctrain tune status {shlex.quote(str(paths.root))}"
        )
    with errors_of_storage(root):
        try:
            stack = contextlib.ExitStack()
            stack.enter_context(claimed(root, patience_s=timeouts.SWEEP_CLAIM_S))
        except LaunchError as error:
            raise ConfigError(
                f"another process has been beginning the sweep {paths.root} for "
                f"{timeouts.describe(timeouts.SWEEP_CLAIM_S)}."
            ) from error
    with stack, shown_alive(paths) as life:
        yield life


@contextlib.contextmanager
def errors_of_files(paths: SweepPaths, how_to_go_on: str) -> Iterator[None]:
    """Turn an error of the filesystem that a sweep is written to into one with the next step.

    Not collective.

    Parameters
    ----------
    how_to_go_on
        In words, once there is a sweep.

    Raises
    ------
    LaunchError
        In its place.
    """
    try:
        yield
    except OSError as error:
        if not is_of_files(error, paths):
            raise
        what = f"{error.filename or paths.events} cannot be written: {error.strerror or error}."
        if has_sweep(paths):
            raise LaunchError(
                f"{what} The trials were asked to stop. Once it can, {how_to_go_on}."
            ) from error
        raise LaunchError(f"{what} Once it can, begin the sweep again.") from error


def is_of_files(error: OSError, paths: SweepPaths) -> bool:
    """Return whether an error is one of the filesystem of a sweep, and not of a connection. Pure.

    Code of the user's, such as a search algorithm, has files of its own, too.
    """
    # An earlier sweep is moved to a name that begins with that of this one.
    is_inside = str(error.filename or "").startswith(str(paths.root))
    return is_inside or error.errno in _OF_FILESYSTEM


def is_begun(paths: SweepPaths) -> bool:
    """Return whether another sweep would be in the way, as far as it can be read.

    Not collective. Trials are, too, whose ledger is gone: runs of the same names would go on.
    """
    has_events = bool(scan_lines(paths.events, is_event).values)
    return has_events or any(paths.root.glob(f"{name_trial(0)[:-1]}*"))


def find_state(paths: SweepPaths, record: SweepRecord) -> str:
    """Return whether a sweep is ``running``, ``ended``, ``stopped`` or ``interrupted``.

    Not collective. It is stopped if a person has done so, and interrupted if its tuner stopped or
    died before the end. One of another host counts as alive, unless its job is over.
    """
    claim = find_claim(RunPaths(paths.root))
    if claim is not None and not _LEFT.has(paths, claim):
        return "running"
    if record.ended is not None:
        return "ended"
    return "interrupted" if read_stop_request(paths) is None else "stopped"


def find_original(paths: SweepPaths, record: SweepRecord) -> str | None:
    """Return the directory that the files of a sweep were copied from; None if they were not.

    Not collective. One whose original is gone was moved.
    """
    if not record.path or record.path == str(paths.root) or not os.path.isdir(record.path):
        return None
    return None if os.path.samefile(record.path, paths.root) else record.path


def begin_anew(paths: SweepPaths) -> None:
    """Move an earlier sweep out of the way, into a directory beside it. Not collective."""
    # The directory itself stays, which is held.
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = paths.root.with_name(f"{paths.root.name}.{stamp}-{secrets.token_hex(2)}")
    aside.mkdir(DIRECTORY_MODE)
    for entry in sorted(paths.root.iterdir()):
        if not entry.name.startswith(".claim") and entry != paths.alive:
            os.rename(entry, aside / entry.name)
    log(f"beginning sweep {paths.root.name} anew; the earlier one was moved to {aside}")


def find_slots(launcher: str, most_trials: int | None) -> Callable[[], Slots | NodeSlots]:
    """Return what makes the slots for trials: of this machine, or of the allocation's nodes.

    Not collective. Slurm is asked once.

    Parameters
    ----------
    launcher
        As `find_launcher` returns it.
    most_trials
        ``TuneConfig(max_concurrent_trials=...)``.

    Raises
    ------
    LaunchError
        If Slurm does not answer.
    """
    most = most_trials or math.inf
    if launcher == "local":
        capacity = _find_capacity(most)
        return lambda: Slots(capacity)
    from hpctrain.slurm.probe import allocation_nodes

    allocated = allocation_nodes(with_gpus=True)
    down, cpus_per_core = _look_at_nodes(allocated)
    nodes = {
        name: NodeShare(
            cpus=node.cpus or 1,
            gpus=node.gpus or 0,
            mem_bytes=math.inf if node.mem_mib is None else node.mem_mib * 2**20,
            cpus_per_core=cpus_per_core.get(name, 1),
        )
        for name, node in allocated.items()
    }

    def make() -> NodeSlots:
        slots = NodeSlots(nodes, most_trials=most)
        for node in down:
            slots.leave_out(node, "Slurm reports that it is down")
        return slots

    return make


def _look_at_nodes(nodes: Iterable[str]) -> tuple[list[str], Mapping[str, int]]:
    """Return which nodes of this job are down, and how many CPUs a core of each has."""
    from hpctrain.slurm.nodes import SlurmNodes

    of_job = SlurmNodes(environ.variable("SLURM_JOB_ID") or "")
    try:
        usable, cpus_per_core = of_job.usable(), of_job.cpus_per_core()
    except LaunchError as error:
        log(f"warning: whether a node of this job is down is not known: {error}")
        return [], {}
    return [node for node in nodes if node not in usable], cpus_per_core


def _find_capacity(most_trials: float) -> Capacity:
    """Return what this machine has for trials, or the allocation on it."""
    cpus = len(os.sched_getaffinity(0))
    mem_bytes: float = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allocated_cpus = math.inf
    if (node := _own_node()) is not None:
        # Not every site binds a job to its CPUs.
        cpus, allocated_cpus = min(cpus, node.cpus or cpus), node.cpus or math.inf
        mem_bytes = min(mem_bytes, (node.mem_mib or math.inf) * 2**20)
    return Capacity(
        cpus=cpus,
        gpus=visible_gpus(),
        mem_bytes=mem_bytes,
        most_trials=most_trials,
        allocated_cpus=allocated_cpus,
    )


def _own_node() -> AllocatedNode | None:
    """Return what an allocation of one node, this machine, has of it; None in all other cases."""
    name = environ.variable("SLURMD_NODENAME")
    if name is None or environ.variable("SLURM_JOB_NODELIST") != name:
        return None
    return read_allocation(environ.environment(), [name], {})[name]


def find_launcher(run_config: RunConfig, tune_config: TuneConfig) -> TrialLauncher:
    """Return how trials start.

    Not collective. In an allocation of one node, from that node itself, trials are processes of it.

    Raises
    ------
    ConfigError
        If this process is a rank, on a login node of Slurm without ``launcher="jobs"``, elsewhere
        with it, or in an allocation that is over.
    LaunchError
        If it is not known whether this is a login node, since Slurm does not answer.
    """
    refuse_nested_fit("Tuner.fit")
    if tune_config.launcher is not None:
        _check_jobs(run_config)
        return "slurm"
    launcher = choose_launcher(ScalingConfig(), run_config)
    if launcher == "spmd":
        raise ConfigError(
            "this process is one of several ranks, and a sweep starts its trials itself. Start the "
            "script once, without srun or mpiexec."
        )
    if launcher == "slurm":
        raise ConfigError(
            "a sweep runs its trials on this machine, or on the nodes of the allocation that it is "
            "in, and this is a login node of Slurm. Give each trial a job of its own, with "
            "TuneConfig(launcher='jobs', max_jobs=...); start the script in an allocation (sbatch "
            "or salloc); or, if trials may run here, with RunConfig(launcher='local')."
        )
    if launcher == "allocation":
        from hpctrain.slurm.job import refuse_ended_allocation

        refuse_ended_allocation()
        return "local" if _own_node() is not None else "allocation"
    if launcher == "mpiexec":
        log("note: a sweep runs its trials on this machine, and leaves the other hosts alone.")
    return "local"


def _check_jobs(run_config: RunConfig) -> None:
    """Refuse ``TuneConfig(launcher="jobs")`` where no jobs can be submitted."""
    asked = environ.requested_launcher() or run_config.launcher
    if asked not in ("auto", "slurm"):
        raise ConfigError(
            f"TuneConfig(launcher='jobs') gives each trial a Slurm job, and launcher={asked!r} "
            f"(RunConfig, --launcher or HPCTRAIN_LAUNCHER) starts them in another way. Leave one "
            f"of the two out."
        )
    home = current_home()
    if home is Home.ALLOCATION:
        raise ConfigError(
            f"TuneConfig(launcher='jobs') submits jobs from a login node, and this process is in "
            f"job {environ.variable('SLURM_JOB_ID')}. Leave launcher and max_jobs out: trials run "
            f"on slices of this allocation. Or start the script on a login node."
        )
    if home is Home.SPMD:
        raise ConfigError(
            "this process is one of several ranks, and a sweep submits its trials itself. Start "
            "the script once, without srun or mpiexec."
        )
    if home is not Home.LOGIN:
        raise ConfigError(
            "TuneConfig(launcher='jobs') submits a Slurm job for each trial, and this machine "
            "cannot submit jobs: there is no sbatch on PATH, or no slurm.conf. Start the script on "
            "a login node, or leave launcher and max_jobs out, and trials run on this machine."
        )
    if environ.detach_requested():
        raise ConfigError(
            "'hpctrain submit' ends once a run is submitted, and a sweep with "
            "TuneConfig(launcher='jobs') submits trials until the last one has ended. Start it "
            "with: python SCRIPT (in tmux, if the connection may be lost)."
        )
