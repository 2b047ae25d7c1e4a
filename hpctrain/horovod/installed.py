"""The Horovod that is installed: loaded, or an error that says how to build it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpctrain.errors import ConfigError

_BUILD = "Build it for the torch and the MPI of this environment: hpctrain install horovod"


def load() -> Any:
    """Return the module ``horovod.torch``. Not collective.

    Raises
    ------
    ConfigError
        If it is missing, or was built for another torch.
    """
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f"the workers cannot import torch: {error}. Install it where the workers run: pip "
            f"install 'hpctrain[horovod]', and then: hpctrain install horovod"
        ) from error
    try:
        import horovod.torch
    # A library of another torch lacks symbols, which ctypes says as an OSError.
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(
            f"the workers cannot load Horovod with torch {torch.__version__}: {error}. {_BUILD}"
        ) from error
    return horovod.torch


def load_runner() -> None:
    """Look whether there is a Horovod, without loading torch. Not collective.

    Raises
    ------
    ConfigError
        If it is missing.
    """
    try:
        import horovod.runner.http.http_server  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"the workers cannot load Horovod: {error} {_BUILD}") from error


def check_gloo(hvd: Any) -> None:
    """Refuse a Horovod without Gloo. Not collective.

    Raises
    ------
    ConfigError
        If it has none.
    """
    if not hvd.gloo_built():
        raise ConfigError(
            "the installed Horovod was built without Gloo, which elastic runs, single ranks and "
            "HorovodConfig(transport='gloo') need. Build it with both: hpctrain install horovod"
        )


def check_mpi(hvd: Any) -> None:
    """Refuse a Horovod without MPI, or with another MPI than the ranks have. Not collective.

    The other one has not been initialised, and would end the process.

    Raises
    ------
    ConfigError
        If it has none, or another.
    """
    if not hvd.mpi_built():
        raise ConfigError(
            f"HorovodConfig(transport='mpi'), but the installed Horovod was built without MPI. "
            f"{_BUILD}. Or leave transport out."
        )
    libraries = _loaded_mpi_libraries()
    if len(libraries) > 1:
        raise ConfigError(
            f"Horovod was built for another MPI than the ranks have: this process has loaded "
            f"{' and '.join(libraries)}. {_BUILD}. Or set HorovodConfig(transport='gloo')."
        )


def _loaded_mpi_libraries() -> list[str]:
    """Return the MPI libraries in the memory of this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/libmpi" in line}
    # libmpi.so.12, libmpi_cray.so.12; not libmpi_mpifh.so or libmpicxx.so, which go with one.
    named = {
        p for p in paths if Path(p).name.startswith(("libmpi.so", "libmpi_cray", "libmpi_gnu"))
    }
    return sorted(named)
