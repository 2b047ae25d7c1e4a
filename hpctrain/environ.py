"""The one owner of ``os.environ``.

Every rank imports this module at its start, so functions import their special needs themselves. No
other module of hpctrain reads or writes the environment (ruff's banned-api enforces this).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpctrain.errors import ConfigError

# Variables by which launchers mark a process as a rank. A child that inherits them and initialises
# MPI itself aborts (MPICH) or ends its parent (Open MPI), so a rank deletes them once MPI is
# initialised.
_LAUNCHER_PREFIXES = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "HYD", "MPI_LOCAL", "MPIR_PMI", "MV2_COMM")
# Configuration, not the identity of a rank: kept.
_LAUNCHER_KEEP = ("OMPI_MCA_", "PRTE_MCA_", "OMPI_ALLOW_RUN_AS_ROOT")
_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
)
_EXPORT_VARIABLES = ("SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV")

_OF_THIS_HOST = frozenset(
    ["_", "DISPLAY", "HOST", "HOSTNAME", "OLDPWD", "PWD", "SHLVL", "TERM", "TMPDIR", "TTY"]
)

RANK_MARKER = "HPCTRAIN_RANK"
STEP_MARK = "HPCTRAIN_STEP"
"""Identifies the sruns of one attempt, including those of its mpiexec."""
HOSTFILE = "HPCTRAIN_HOSTFILE"
"""Names the hosts on which ``fit()`` starts ranks."""
TOPOLOGY_FILE = "HWLOC_XMLFILE"
"""Names a file that describes the hardware for hwloc. If it is empty, hwloc detects the
hardware."""
FORK_CLIENT = "HPCTRAIN_FORK_CLIENT"
"""Brings the code of `hpctrain.worker.fork_client`, which deletes it, to a launched process."""
SLOT_SERVER = "HPCTRAIN_SLOT_SERVER"
"""In the step of a slot: name of the socket of the fork server there."""
SLOT_HOST = "HPCTRAIN_SLOT_HOST"
"""In the step of a slot: which process holds it, as `hpctrain.worker.parent_death.mark` says."""
_LAUNCHER = "HPCTRAIN_LAUNCHER"
_EXISTING = "HPCTRAIN_EXISTING"
_DETACH = "HPCTRAIN_DETACH"
_DRY_RUN = "HPCTRAIN_DRY_RUN"
_TRUST_WRITERS = "HPCTRAIN_TRUST_WRITERS"
_SLURM_OVERRIDES = "HPCTRAIN_SLURM"
_FORK_SERVER = "HPCTRAIN_FORK_SERVER"
_HUB_FANOUT = "HPCTRAIN_HUB_FANOUT"
_NOT_FORKED = "HPCTRAIN_NOT_FORKED"
_REASON_CHARACTERS = 2000

# What launchers set for each process that they start, and no library reads when it is imported.
_OF_LAUNCHER_PREFIXES = (
    *("PMI", "OMPI_", "PRTE_", "HYD", "MPI_", "MPIR_", "MPICH_", "MPIEXEC_", "I_MPI_", "MV2_"),
    *("PALS_", "SLURM", "SRUN_"),
)
_OF_LAUNCHER = frozenset(
    [
        *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES"),
        *("ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
        *("HPCTRAIN_STEP", "HPCTRAIN_SLOT_HOST", "HPCTRAIN_SLOT_SERVER"),
        *("HWLOC_XMLFILE", "TMPDIR"),
        *("_", "OLDPWD", "PWD", "SHLVL"),
        # hydra's; of Fortran's own units.
        "GFORTRAN_UNBUFFERED_PRECONNECTED",
    ]
)


def requested_hostfile() -> str | None:
    """Return the hostfile of ``--hostfile`` or ``HPCTRAIN_HOSTFILE``, or None."""
    return os.environ.get(HOSTFILE) or None


def request_hostfile(path: Path) -> None:
    """Let every ``fit()`` of this process and its children start ranks on the hosts of a file."""
    os.environ[HOSTFILE] = str(path.absolute())


def environment() -> dict[str, str]:
    """Return a copy of the environment of this process."""
    return dict(os.environ)


def variable(name: str) -> str | None:
    """Return a variable of the environment, or None."""
    return os.environ.get(name)


def working_directory() -> str:
    """Return the working directory of this process.

    Raises
    ------
    ConfigError
        If it was deleted meanwhile.
    """
    try:
        return os.getcwd()
    except OSError as error:
        was = f", {os.environ['PWD']}," if "PWD" in os.environ else ""
        raise ConfigError(
            f"the working directory of this process{was} was deleted: {error.strerror}. cd to one "
            f'that exists (cd "$PWD" if it was recreated), and run the command again.'
        ) from error


def expand_path(path: str) -> Path:
    """Return a path with its variables and ``~`` replaced, as a shell does.

    Raises
    ------
    ConfigError
        If a variable is not set, or the path is not absolute.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    if "$" in expanded or not os.path.isabs(expanded):
        import socket

        raise ConfigError(
            f"{path!r} is {expanded!r} on {socket.gethostname()}: an absolute path is needed, and "
            f"its variables must be set for the ranks."
        )
    return Path(expanded)


def export(values: Mapping[str, str | None], *, keep_existing: bool = False) -> None:
    """Write variables into the environment of this process; None deletes one, if it is set."""
    for name, value in values.items():
        if keep_existing and name in os.environ:
            continue
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def replace_environment(values: Mapping[str, str]) -> None:
    """Give this process another environment."""
    os.environ.clear()
    os.environ.update(values)


def is_of_launcher(name: str) -> bool:
    """Return whether launchers set a variable for each rank, and imports do not depend on it."""
    return name in _OF_LAUNCHER or name.startswith(_OF_LAUNCHER_PREFIXES)


def wants_fork_server() -> bool:
    """Return whether ranks may be forked from a process that has imported their modules.

    Raises
    ------
    ConfigError
        If ``HPCTRAIN_FORK_SERVER`` is neither 0 nor 1.
    """
    value = os.environ.get(_FORK_SERVER) or "1"
    if value not in ("0", "1"):
        raise ConfigError(
            f"{_FORK_SERVER}={value!r}: set it to 0, and each rank imports for itself, or leave it "
            f"out."
        )
    return value == "1"


def hub_fanout() -> int:
    """Return how many connections to agents the executor has, and each agent that relays.

    Raises
    ------
    ConfigError
        If ``HPCTRAIN_HUB_FANOUT`` is not a number above 1.
    """
    value = os.environ.get(_HUB_FANOUT) or "32"
    if not value.isascii() or not value.isdigit() or int(value) < 2:
        raise ConfigError(
            f"{_HUB_FANOUT}={value!r}: it is the number of nodes above which agents relay for "
            f"others, 2 or more. Unset it for the default, 32."
        )
    return int(value)


def take_not_forked() -> str:
    """Return why no fork server has made this rank, if its launcher's process asked one.

    The variable is deleted. It is that of `hpctrain.worker.fork_client`.
    """
    return os.environ.pop(_NOT_FORKED, "")


def keep_not_forked(reason: str) -> None:
    """Keep for `take_not_forked` why this rank imports its modules itself, also beyond an exec."""
    # The kernel takes 128 KiB of a variable.
    os.environ[_NOT_FORKED] = reason[:_REASON_CHARACTERS]


def take_slot_host() -> str:
    """Return `SLOT_HOST` of this process, or nothing; the variable is deleted."""
    return os.environ.pop(SLOT_HOST, "")


def launched_rank() -> int:
    """Return the rank of this process according to the launcher, or -1 if it sets none.

    It may differ from MPI's later rank: it serves to name ranks that hang in ``MPI_Init``.
    """
    said = (os.environ.get(name) for name in _RANK_VARIABLES)
    return next((int(value) for value in said if value is not None), -1)


def is_launched_by_hydra() -> bool:
    """Return whether hydra of MPICH or Intel MPI started this rank. Not valid after a scrub."""
    return "MPI_LOCALRANKID" in os.environ


def scrub_launcher_variables() -> None:
    """Delete the variables by which this process is a rank, so that its children are not."""
    for name in list(os.environ):
        if name.startswith(_LAUNCHER_PREFIXES) and not name.startswith(_LAUNCHER_KEEP):
            del os.environ[name]
    if os.environ.get(TOPOLOGY_FILE) == "":
        # Set for hydra alone.
        del os.environ[TOPOLOGY_FILE]


def without_launcher_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables that mark a process as a rank."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_LAUNCHER_PREFIXES) or name.startswith(_LAUNCHER_KEEP)
    }


def without_export_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the options that stop srun from passing variables to a step.

    sbatch sets them for ``--export``; hpctrain's own steps use ``--export=ALL``, but the srun of an
    mpiexec does not, nor one that a rank starts.
    """
    return {name: value for name, value in environ.items() if name not in _EXPORT_VARIABLES}


def portable_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables to pass to a process on another host.

    Not collective. Excludes variables of a host, a terminal or a session, and exported shell
    functions.
    """
    return tuple(
        name
        for name in environ
        if name.isidentifier()
        and name not in _OF_THIS_HOST
        and not name.startswith((*_LAUNCHER_PREFIXES, "SSH_", "XDG_"))
    )


def restart_count() -> int:
    """Return how often Slurm has restarted the job of this process."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def requested_launcher() -> str | None:
    """Return the launcher of ``--launcher`` or ``HPCTRAIN_LAUNCHER``, or None."""
    return os.environ.get(_LAUNCHER) or None


def request_launcher(launcher: str) -> None:
    """Set the launcher for every ``fit()`` of this process and its children."""
    os.environ[_LAUNCHER] = launcher


def requested_existing() -> str | None:
    """Return the policy of ``--existing`` or ``HPCTRAIN_EXISTING``, or None.

    It applies to the script that a person starts, not to processes of its ranks.
    """
    return None if in_rank() else os.environ.get(_EXISTING) or None


def request_existing(policy: str) -> None:
    """Set what every ``fit()`` of this process does with an existing run."""
    os.environ[_EXISTING] = policy


def detach_requested() -> bool:
    """Return whether ``fit()`` is to end the process once its job is submitted."""
    return os.environ.get(_DETACH) == "1"


def request_detach() -> None:
    """Let ``fit()`` end the process once its job is submitted."""
    os.environ[_DETACH] = "1"


def dry_run_requested() -> bool:
    """Return whether ``fit()`` is to print what it would do, and end the process."""
    return os.environ.get(_DRY_RUN) == "1"


def request_dry_run() -> None:
    """Let ``fit()`` print what it would do, and end the process."""
    os.environ[_DRY_RUN] = "1"


def trusts_writers() -> bool:
    """Return whether other users who can write into a run directory may run code as this user."""
    return os.environ.get(_TRUST_WRITERS) == "1"


def slurm_overrides() -> dict[str, Any]:
    """Return the fields of SlurmConfig of ``HPCTRAIN_SLURM``, by name; verbs with options set it.

    Raises
    ------
    ConfigError
        If the variable is not a JSON object.
    """
    text = os.environ.get(_SLURM_OVERRIDES) or "{}"
    try:
        overrides = json.loads(text)
    except ValueError:
        overrides = None
    if not isinstance(overrides, dict):
        raise ConfigError(
            f"{_SLURM_OVERRIDES}={text!r}: it has fields of SlurmConfig as a JSON object, such as "
            f"""'{{"partition": "gpu"}}'. Unset it, or write it so."""
        )
    return overrides


def request_slurm_overrides(fields: Mapping[str, str | int]) -> None:
    """Let these fields of SlurmConfig override the script's in every ``fit()`` that submits.

    They override those of ``HPCTRAIN_SLURM``, whose others stay.
    """
    os.environ[_SLURM_OVERRIDES] = json.dumps({**slurm_overrides(), **fields})


def in_rank() -> bool:
    """Return whether this process, or one of its parents, is one of our ranks."""
    return RANK_MARKER in os.environ


def find_program(name: str) -> Path | None:
    """Return the full path of a program on ``PATH``, or None."""
    import shutil

    found = shutil.which(name)
    return None if found is None else Path(found)
