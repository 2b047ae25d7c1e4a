"""Which home a process is in: on a laptop, a login node, in an allocation, or as a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from hpctrain.environ import HOSTFILE, RANK_MARKER
from hpctrain.errors import ConfigError

_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
# Name the file of a job's hosts: PBS and Torque, LSF, Cobalt, Grid Engine.
_NODE_FILE_VARIABLES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "COBALT_NODEFILE", "PE_HOSTFILE")


class Home(Enum):
    """Where ``fit()`` was called."""

    LOCAL = "local"
    """A laptop or workstation: no Slurm."""
    LOGIN = "slurm"
    """A machine from which jobs are submitted."""
    ALLOCATION = "allocation"
    """Inside sbatch or salloc, and not a rank."""
    HOSTS = "mpiexec"
    """On one of several hosts that a file names: for example in a job of PBS or LSF, and not a
    rank."""
    SPMD = "spmd"
    """Already a rank, among ranks that the user started."""


def detect_home(
    environ: Mapping[str, str], *, mpi_world_size: int | None, can_submit: Callable[[], bool]
) -> Home:
    """Return which home a process is in, from its environment.

    Not collective.

    Parameters
    ----------
    environ
        The environment of the process.
    mpi_world_size
        Size of the MPI world if MPI is already initialised in this process, else None. It takes
        precedence over all variables.
    can_submit
        Returns whether this machine can submit to Slurm; only called if needed.

    Raises
    ------
    ConfigError
        If torchrun started the process: hpctrain starts the ranks itself.
    """
    if mpi_world_size is not None and mpi_world_size > 1:
        return Home.SPMD
    if RANK_MARKER in environ:
        # A child of one of our ranks: the ranks that it starts stay on this machine.
        return Home.LOCAL
    if "TORCHELASTIC_RUN_ID" in environ:
        size = environ.get("WORLD_SIZE", "1")
        processes = "1 process" if size == "1" else f"{size} processes"
        raise ConfigError(
            f"torchrun (or accelerate launch) started this script as {processes}, and "
            f"hpctrain starts the ranks itself. Use ScalingConfig(num_workers={size}), and run "
            f"`python SCRIPT` instead."
        )
    in_step = "SLURM_STEP_ID" in environ
    step_tasks = int(environ.get("SLURM_STEP_NUM_TASKS", "1")) if in_step else 1
    launched = next((int(environ[name]) for name in _SIZE_VARIABLES if name in environ), None)
    if max(step_tasks, launched or 1) > 1:
        return Home.SPMD
    # `srun --pty bash` is a step of one task, with PMI variables if the site's MpiDefault sets
    # them; outside of a step they come from an mpiexec with one rank.
    if launched == 1 and not in_step:
        return Home.SPMD
    if "SLURM_JOB_ID" in environ and not environ.get(HOSTFILE):
        return Home.ALLOCATION
    if hostfile(environ) is not None:
        return Home.HOSTS
    return Home.LOGIN if can_submit() else Home.LOCAL


def hostfile(environ: Mapping[str, str]) -> str | None:
    """Return the path of the file that names the hosts for ranks, or None.

    Not collective. The requested file (``--hostfile``, ``HPCTRAIN_HOSTFILE``), else that of a job
    of PBS, LSF, Cobalt or Grid Engine.
    """
    names = (HOSTFILE, *_NODE_FILE_VARIABLES)
    return next((environ[name] for name in names if environ.get(name)), None)
