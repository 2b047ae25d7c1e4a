"""Find what starts ranks here: srun with a PMI that the MPI library speaks, or an mpiexec."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

from hpctrain import environ, timeouts
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.slurm.pmi import offered_pmi_types

# What `srun --mpi=X` must be for ranks to find each other, best first (measured with Slurm 22.05).
_PMI_OF = {
    "mpich": ("pmi2",),
    # Slurm lists cray_shasta everywhere, but only Cray's own MPICH speaks it.
    "cray-mpich": ("cray_shasta", "pmi2"),
    "openmpi": ("pmix", "pmix_v5", "pmix_v4", "pmix_v3"),
}
# Of srun, of MPICH 5 under PMIx, and of Open MPI 4 under PMI-2. Later ones become singletons.
_WRONG_PMI = re.compile(
    r"Invalid MPI type|unsupported PMI version|OMPI was not built with SLURM's PMI support"
)


def find_mpiexec(mpi: str) -> StepLauncher:
    """Return the mpiexec for ranks on this machine.

    Not collective.

    Parameters
    ----------
    mpi
        ``auto``: the one of this environment's MPI wheel, else the one on ``PATH``. ``wheel``: only
        the former. Otherwise its path.

    Raises
    ------
    LaunchError
        If there is none.
    """
    if "/" in mpi:
        if not Path(mpi).is_file():
            raise ConfigError(f"SlurmConfig(mpi={mpi!r}): there is no such program.")
        return StepLauncher(program=mpi, kind=_mpiexec_kind(Path(mpi)))
    beside = Path(sys.executable).parent / "mpiexec"
    if beside.exists():
        kind = "hydra" if beside.with_name("mpiexec.hydra").exists() else _mpiexec_kind(beside)
        return StepLauncher(program=str(beside), kind=kind)
    found = None if mpi == "wheel" else environ.find_program("mpiexec")
    if found is None:
        where = f"in {beside.parent}" if mpi == "wheel" else f"in {beside.parent} or on PATH"
        raise LaunchError(
            f"no mpiexec {where}. Install the MPI wheel (pip install 'hpctrain[local]'), load the "
            f"site's MPI (module load ...), or name it with SlurmConfig(mpi='/path/to/mpiexec')."
        )
    return StepLauncher(program=str(found), kind=_mpiexec_kind(found))


def find_own_hydra() -> bool:
    """Return whether ranks have the MPICH of this environment, with its mpiexec. Not collective."""
    program = Path(sys.executable).parent / "mpiexec.hydra"
    return not _is_library_named() and program.exists() and _mpi_library() == "mpich"


def find_step_launcher(mpi: str, *, library: str | None = None) -> StepLauncher:
    """Return what starts ranks inside an allocation of Slurm.

    Not collective. ``auto`` asks srun which PMI types it has and takes the one that the MPI library
    of the ranks speaks; the wrong one gives as many worlds of one as there are ranks.

    Parameters
    ----------
    mpi
        As in `SlurmConfig`.
    library
        Which kind of MPI library ranks have; None is that of this environment.

    Raises
    ------
    LaunchError
        If srun has none that fits and there is no mpiexec either.
    """
    if "/" in mpi or mpi == "wheel":
        return find_mpiexec(mpi)
    if mpi != "auto":
        return StepLauncher(program="srun", kind="srun", pmi=mpi)
    offered = offered_pmi_types()
    library = library or _mpi_library()
    for pmi in _PMI_OF[library]:
        if pmi in offered:
            return StepLauncher(program="srun", kind="srun", pmi=pmi)
    try:
        return find_mpiexec("auto")
    except LaunchError as error:
        raise LaunchError(
            f"the MPI library here is of the {library} kind, which speaks {_PMI_OF[library][-1]}, "
            f"but srun --mpi=list offers only {', '.join(sorted(offered))}, and there is no "
            f"mpiexec. {error}"
        ) from error


def other_mpi(mpi: str, *, tried: str) -> str:
    """Return what to try after a start that failed inside MPI: by turns srun and our own mpiexec.

    Not collective. Returns `mpi` itself where the user chose, or where there is no wheel.

    Parameters
    ----------
    mpi
        As of the plan.
    tried
        What failed.
    """
    has_wheel = (Path(sys.executable).parent / "mpiexec").exists()
    if _is_library_named():
        return mpi
    return "wheel" if mpi == tried == "auto" and has_wheel else mpi


def explain_wrong_pmi(mpi: str, *, output: str, library: str | None = None) -> str:
    """Return why no start with a PMI that the user named can succeed; empty if one may.

    Not collective.

    Parameters
    ----------
    mpi
        ``SlurmConfig(mpi=...)``.
    output
        What srun and the ranks printed when a start failed.
    library
        Which kind of MPI library ranks have; None is that of this environment.
    """
    if mpi in ("auto", "wheel") or "/" in mpi or not _WRONG_PMI.search(output):
        return ""
    library = library or _mpi_library()
    spoken = _PMI_OF[library]
    if mpi in spoken:
        return (
            f"srun cannot set up SlurmConfig(mpi={mpi!r}) here. Use SlurmConfig(mpi='auto'), or "
            f"the mpiexec that belongs to the MPI library (SlurmConfig(mpi='/path/to/mpiexec'))."
        )
    return (
        f"SlurmConfig(mpi={mpi!r}) does not fit the MPI library here, which is of the {library} "
        f"kind. Use SlurmConfig(mpi={spoken[0]!r}), or mpi='auto', which finds out."
    )


def explain_wrong_mpiexec(mpi: str, *, output: str, library: str | None = None) -> str:
    """Return why no start with an mpiexec can succeed; empty if one may.

    Not collective.

    Parameters
    ----------
    mpi
        As of `find_mpiexec`.
    output
        What mpiexec and the ranks printed when a start failed.
    library
        Which kind of MPI library ranks have; None is that of this environment.
    """
    if not _WRONG_PMI.search(output):
        return ""
    launcher, library = find_mpiexec(mpi), library or _mpi_library()
    kind = "openmpi" if launcher.kind == "openmpi" else "mpich"
    if (kind == "openmpi") == (library == "openmpi"):
        return ""
    return (
        f"{launcher.program} is of the {kind} kind, and the MPI library here of the {library} "
        f"kind. Both must be of one MPI: use the mpiexec that belongs to the library "
        f"(SlurmConfig(mpi='/path/to/mpiexec'), or mpi='wheel' for that of pip install "
        f"'hpctrain[local]'), or set MPI4PY_LIBMPI to the library that belongs to this mpiexec."
    )


def launcher_variables(kind: str, *, local: bool) -> dict[str, str]:
    """Return what a launcher wants to find in its environment.

    Not collective.

    Parameters
    ----------
    kind
        Of the launcher, as in `StepLauncher`.
    local
        Whether the ranks stay on this machine, even inside an allocation.
    """
    variables = {}
    if kind == "hydra" and environ.variable(environ.TOPOLOGY_FILE) is None:
        # Otherwise its proxies write one into /tmp, which stays when they are killed.
        variables = {environ.TOPOLOGY_FILE: ""}
    if kind == "openmpi" and os.geteuid() == 0:
        # Open MPI refuses root unless both are set.
        variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if kind != "srun" and not local:
        # For the srun with which hydra, prterun and orterun start their proxies: one step for all
        # of the job's memory refuses the agents (SLURM_OVERLAP), and ranks abort that find the PMI
        # of Slurm beside that of mpiexec (SLURM_MPI_TYPE; both seen with Slurm 22.05).
        variables.update({"SLURM_OVERLAP": "1", "SLURM_MPI_TYPE": "none"})
    return variables


@functools.cache
def _mpi_library() -> str:
    """Return which kind of MPI mpi4py will load here: a key of `_PMI_OF`."""
    # mpi4py looks into the environment's lib directory before LD_LIBRARY_PATH.
    library = Path(sys.prefix) / "lib"
    for name, kind in (("libmpi.so.12", "mpich"), ("libmpi.so.40", "openmpi")):
        if not _is_library_named() and (library / name).exists():
            return kind
    if environ.variable("CRAY_MPICH_VERSION") is not None:
        return "cray-mpich"
    answer = subprocess.run(
        [sys.executable, "-m", "mpi4py", "--mpi-lib-version"],
        capture_output=True,
        text=True,
        timeout=timeouts.LAUNCHER_PROBE_S,
        env=environ.without_launcher_variables(environ.environment()),
    )
    return "openmpi" if "Open MPI" in answer.stdout else "mpich"


def _is_library_named() -> bool:
    """Return whether the user has set which library mpi4py loads; it looks no further then."""
    return bool(environ.variable("MPI4PY_LIBMPI"))


def _mpiexec_kind(program: Path) -> str:
    try:
        answer = subprocess.run(
            [str(program), "--version"],
            capture_output=True,
            text=True,
            timeout=timeouts.LAUNCHER_PROBE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{program} --version does not work: {error}.") from error
    text = answer.stdout + answer.stderr
    # "mpirun (Open MPI) 4.1.4", and of the same program "mpiexec (OpenRTE) 4.1.4".
    return "openmpi" if re.search(r"Open ?(MPI|RTE)|PRRTE|prterun", text, re.I) else "hydra"
