"""Which programs a cluster needs, which of them are missing, and how to install them."""

from __future__ import annotations

import os
import shutil
import subprocess

from hpctrain.testing.slurm import memory_cgroups
from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.spec import ClusterSpec, Mode

# Daemons are in sbin, which is not on the PATH of ordinary users.
SEARCH_PATH = os.pathsep.join(
    dict.fromkeys([*os.get_exec_path(), "/usr/local/sbin", "/usr/sbin", "/sbin"])
)

# program -> the Debian and Ubuntu package it is in
_ALWAYS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sinfo": "slurm-client",
    "munged": "munge",
    "env": "coreutils",
    "setsid": "util-linux",
}
_NAMESPACES = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
}
_ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-client",
    "mariadbd": "mariadb-server",
    "mariadb": "mariadb-client",
    "mariadb-install-db": "mariadb-server",
}
# Packages that hold no program but a plug-in or its library. Debian's mpi/pmix plug-in opens
# libpmix.so without a version, which only the -dev package has.
_ACCOUNTING_PACKAGES = ("slurm-wlm-mysql-plugin",)
_PMIX_PACKAGES = ("libpmix-dev",)


def missing_components(spec: ClusterSpec, *, search_path: str = SEARCH_PATH) -> tuple[str, ...]:
    """Return the programs that the cluster needs and this machine does not have.

    Parameters
    ----------
    spec
        The cluster.
    search_path
        Directories to look in, in the form of ``PATH``.
    """
    return tuple(
        program
        for program in _needed_programs(spec)
        if shutil.which(program, path=search_path) is None
    )


def install_command(spec: ClusterSpec) -> str:
    """Return the command that installs all that the cluster needs on Debian and Ubuntu."""
    packages = [*_needed_programs(spec).values()]
    if spec.accounting:
        packages += _ACCOUNTING_PACKAGES
    if spec.mpi_default.startswith("pmix"):
        packages += _PMIX_PACKAGES
    return f"apt-get install -y --no-install-recommends {' '.join(dict.fromkeys(packages))}"


def describe_missing(missing: tuple[str, ...], spec: ClusterSpec) -> str:
    """Return one sentence for an error or for the reason of a skipped test."""
    return (
        f"The virtual Slurm cluster needs {', '.join(missing)}, which this machine does not have. "
        f"Install everything it needs: {install_command(spec)}"
    )


def check_components(spec: ClusterSpec, *, search_path: str = SEARCH_PATH) -> None:
    """Raise an error which names the missing programs, if there are any."""
    if missing := missing_components(spec, search_path=search_path):
        raise ClusterError(describe_missing(missing, spec))
    if spec.memory_limits and not memory_cgroups.is_mounted():
        raise ClusterError(
            f"memory_limits=True needs cgroup v1's memory hierarchy at {memory_cgroups.HIERARCHY}. "
            f"Mount it, or go without limits."
        )
    if spec.mode == "namespaces" and os.geteuid() != 0:
        raise ClusterError("mode='namespaces' needs root. Run as root, or use mode='flat'.")


def best_mode() -> Mode:
    """Return ``namespaces`` where this process may make them, else ``flat``."""
    # root in an unprivileged container may not make namespaces.
    probe = ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "true"]
    if os.geteuid() != 0 or shutil.which("unshare", path=SEARCH_PATH) is None:
        return "flat"
    allowed = subprocess.run(probe, capture_output=True, timeout=10, check=False).returncode == 0
    return "namespaces" if allowed else "flat"


def _needed_programs(spec: ClusterSpec) -> dict[str, str]:
    programs = dict(_ALWAYS)
    if spec.mode == "namespaces":
        programs |= _NAMESPACES
    if spec.accounting:
        programs |= _ACCOUNTING
    return programs
