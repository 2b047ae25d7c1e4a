"""The compute nodes against the login node, and the MPI worlds that formed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from hpctrain.doctor.finding import Finding, error, ok, remark, warning
from hpctrain.host_list import compress_hosts

_LEAST_SHM = 64 * 2**20
_LEAST_FILES = 1024
_LEAST_PROCESSES = 1024
_LEAST_SPACE = 2**36
_LEAST_FREE = 2**30
# File times and certificates tolerate less; logs of two nodes cannot be put in order.
_MOST_SKEW_S = 1.0
_LONG_IMPORT_S = 20.0
# What Python calls them: on these, a file that is written on one machine is not on another.
_NOT_SHARED = ("tmpfs", "ext4", "xfs", "overlay", "btrfs", "ext3")


def check_login(report: Mapping[str, Any]) -> Finding:
    """Return whether the machine that submits, or runs, can write the storage. Not collective.

    Parameters
    ----------
    report
        What `hpctrain.doctor.machine.describe_machine` returned here.
    """
    return _check_storage([report], where="this machine")


def check_shared(report: Mapping[str, Any]) -> list[Finding]:
    """Return whether the storage looks like one that other machines do not see. Not collective.

    Where nodes were probed they have said so themselves.
    """
    kind, path = report["storage"]["kind"], report["storage"]["path"]
    if kind not in _NOT_SHARED:
        return []
    return [
        warning(
            "storage",
            f"{path} is on {kind} here, which other machines seldom see",
            why="checkpoints land there, and the next job has to find them",
            step="Choose a RunConfig(storage_path=...) on the parallel filesystem",
        )
    ]


def check_machines(
    reports: Sequence[Mapping[str, Any]], *, login: Mapping[str, Any] | None
) -> list[Finding]:
    """Return what machines lack on which ranks run. Not collective.

    Parameters
    ----------
    reports
        One for each machine.
    login
        That of the machine that submits; None where it is the one on which ranks run.
    """
    findings = []
    if login is not None:
        findings += [
            _check_storage(reports, where="compute nodes", token=login["storage"].get("token")),
            _check_versions(reports, login),
            _check_clocks(reports, login),
        ]
    return [
        *findings,
        *_check_imports(reports),
        _check_shared_memory(reports),
        *_check_limits(reports),
        _check_interfaces(reports),
        _check_ports(reports),
    ]


def check_worlds(worlds: Mapping[str, Mapping[str, Any]], *, chosen: str) -> list[Finding]:
    """Return which launchers give one world of ranks. Not collective.

    Parameters
    ----------
    worlds
        By launcher, such as ``srun --mpi=pmi2``: the ``ranks`` that said something, each a
        dict with ``size``, the ``wanted`` number of them, and what was printed in ``output``.
    chosen
        The launcher that a run uses.
    """
    findings = []
    for name, world in worlds.items():
        sizes = sorted({rank["size"] for rank in world["ranks"]})
        if len(world["ranks"]) == world["wanted"] and sizes == [world["wanted"]]:
            library = world["ranks"][0].get("library", "")
            findings.append(ok("MPI", f"{name}: one world of {world['wanted']} ranks, {library}"))
            continue
        said = (world["output"].strip().splitlines() or ["it printed nothing"])[-1][:200]
        what = f"{name}: no world of {world['wanted']} ranks: {said}"
        if sizes:
            what = f"{name}: {len(world['ranks'])} worlds of {sizes[0]} in place of one"
        if name == chosen:
            findings.append(
                error(
                    "MPI",
                    what,
                    why="each rank would train alone, on the same data",
                    step=_other_launcher(worlds),
                )
            )
        else:
            findings.append(remark("MPI", f"{what}; runs do not use it"))
    return findings


def find_connected(worlds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the launchers that made one world of all ranks. Not collective.

    Parameters
    ----------
    worlds
        As for `check_worlds`.
    """
    return [
        name
        for name, world in worlds.items()
        if {rank["size"] for rank in world["ranks"]} == {world["wanted"]}
        and len(world["ranks"]) == world["wanted"]
    ]


def _other_launcher(worlds: Mapping[str, Mapping[str, Any]]) -> str:
    for name in find_connected(worlds):
        mpi = name.rpartition("=")[2] if "=" in name else "wheel"
        return f"SlurmConfig(mpi={mpi!r})"
    return "Install the MPI wheel (pip install 'hpctrain[local]'), or load the site's MPI"


def _check_storage(
    reports: Sequence[Mapping[str, Any]], *, where: str, token: str | None = None
) -> Finding:
    path = reports[0]["storage"]["path"]
    for problem, hosts in grouped(reports, lambda report: report["storage"]["error"]).items():
        return error(
            "storage",
            f"{path} cannot be written on {hosts}: {problem}",
            why="checkpoints and the results land there",
            step="Choose a RunConfig(storage_path=...) that all nodes see and you may write to",
        )
    unseen = [
        report["host"]
        for report in reports
        if token is not None and token not in report["storage"]["files"]
    ]
    if unseen:
        return error(
            "storage",
            f"{path} on {compress_hosts(unseen)} is another directory than here",
            why="the run would begin, and find nothing of what was submitted",
            step="Choose a RunConfig(storage_path=...) on a filesystem that all nodes share",
        )
    free = min(report["storage"]["free_bytes"] for report in reports)
    is_full_of_files = any(report["storage"]["free_files"] == 0 for report in reports)
    if free < _LEAST_FREE or is_full_of_files:
        left = "no inodes left, so no file can be made there"
        return warning(
            "storage",
            f"{path} has {left if is_full_of_files else f'{free / 2**30:.2g} GiB left'}",
            why="a checkpoint that does not fit ends the run",
            step="Delete what is not needed, or choose another RunConfig(storage_path=...)",
        )
    kind = reports[0]["storage"]["kind"]
    return ok("storage", f"{path} ({kind}) is written by {where}, {free / 2**30:.3g} GiB free")


def _check_versions(reports: Sequence[Mapping[str, Any]], login: Mapping[str, Any]) -> Finding:
    for report in reports:
        pairs = {"Python": (login["python"], report["python"])}
        names = {*login["versions"], *report["versions"]}
        pairs |= {n: (login["versions"].get(n), report["versions"].get(n)) for n in sorted(names)}
        for name, (here, there) in pairs.items():
            if here != there:
                return error(
                    "versions",
                    f"{name} is {there or 'missing'} on {report['host']} and {here or 'missing'} "
                    f"here",
                    why="functions are pickled here and unpickled there",
                    step="Use one environment, on a filesystem that both see, and no module in "
                    "SlurmConfig(setup=...) that brings another",
                )
    count = len(login["versions"])
    return ok("versions", f"Python {login['python']} and {count} packages are the same on nodes")


def _check_clocks(reports: Sequence[Mapping[str, Any]], login: Mapping[str, Any]) -> Finding:
    """Compare clocks; a report may be older than the time between two of them allows."""
    found = {report["host"]: report.get("skew_s", 0.0) for report in reports}
    skews = {host: skew for host, skew in found.items() if skew is not None}
    if unknown := [host for host in found if host not in skews]:
        return remark("clocks", f"the clock of {', '.join(unknown)} did not answer")
    host = max(skews, key=lambda host: abs(skews[host]))
    if abs(skews[host]) > _MOST_SKEW_S:
        return warning(
            "clocks",
            f"the clock of {host} is {abs(skews[host]):.1f} s "
            f"{'ahead' if skews[host] > 0 else 'behind'}",
            why="times in logs and of files cannot be compared; hpctrain's own waits do not depend "
            "on it",
            step="Tell the site that NTP does not run there",
        )
    return ok("clocks", f"clocks differ by less than {_MOST_SKEW_S:g} s")


def _check_imports(reports: Sequence[Mapping[str, Any]]) -> list[Finding]:
    findings = []
    for module in reports[0]["imports"]:
        problems = grouped(reports, lambda report, m=module: report["imports"][m]["error"])
        slowest = max(report["imports"][module]["seconds"] for report in reports)
        for problem, hosts in problems.items():
            findings.append(
                error(
                    "imports",
                    f"{module} cannot be imported on {hosts}: {problem}",
                    why="every rank imports it first",
                    step="Install it into the environment of this Python, or load what it needs "
                    "with SlurmConfig(setup=['module load ...'])",
                )
            )
        if not problems and slowest > _LONG_IMPORT_S:
            findings.append(
                warning(
                    "imports",
                    f"importing {module} takes {slowest:.0f} s on a node",
                    why="every start and every restart pays that, and on many nodes more",
                    step="Put the environment into one image or archive on a fast filesystem",
                )
            )
        elif not problems:
            findings.append(ok("imports", f"{module} can be imported, in {slowest:.1f} s"))
    return findings


def _check_shared_memory(reports: Sequence[Mapping[str, Any]]) -> Finding:
    least = min(reports, key=lambda report: report["shm"]["free_bytes"])
    free = least["shm"]["free_bytes"]
    if free < _LEAST_SHM:
        return warning(
            "/dev/shm",
            f"{free / 2**20:.0f} MiB are free in /dev/shm of {least['host']}",
            why="MPI, NCCL and data loaders with workers exchange data there, and end with a bus "
            "error when it is full",
            step="In a container, ask for more (--shm-size=8g, --ipc=host); else remove what an "
            "earlier job left",
        )
    return ok("/dev/shm", f"{free / 2**30:.2g} GiB free")


def _check_limits(reports: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    files, hosts = _lowest(reports, "open files")
    if files < _LEAST_FILES:
        found.append(
            warning(
                "limits",
                f"a process may have {files:.0f} open files on {hosts}",
                why="connections of MPI, shards of datasets and data loaders need more",
                step="ulimit -n 4096 in SlurmConfig(setup=[...])",
            )
        )
    locked, hosts = _lowest(reports, "locked memory")
    if locked < _LEAST_SHM and any(report["infiniband"] for report in reports):
        found.append(
            warning(
                "limits",
                f"a process may lock {locked / 1024:.0f} KiB of memory on {hosts}",
                why="InfiniBand needs locked memory; without it, NCCL and MPI fail or use TCP",
                step="ulimit -l unlimited in SlurmConfig(setup=[...]); or ask the site for it",
            )
        )
    processes, hosts = _lowest(reports, "processes")
    if processes < _LEAST_PROCESSES:
        found.append(
            warning(
                "limits",
                f"a user may have {processes:.0f} processes and threads on {hosts}",
                why="ranks have a thread for each core, and more of NCCL and of data loaders; one "
                "too many cannot be started, and its rank fails",
                step="ulimit -u 16384 in SlurmConfig(setup=[...]); or ask the site for it",
            )
        )
    space, hosts = _lowest(reports, "address space")
    if space < _LEAST_SPACE:
        found.append(
            warning(
                "limits",
                f"a process may have {space / 2**30:.3g} GiB of address space on {hosts}",
                why="CUDA reserves addresses for the memory of all GPUs and of the node, and fails "
                "with 'out of memory' although there is some",
                step="ulimit -v unlimited in SlurmConfig(setup=[...]); or ask the site for it: "
                "VSizeFactor in slurm.conf sets it",
            )
        )
    return found or [
        ok("limits", f"{files:.0f} open files" if files < inf else "open files are not limited")
    ]


def _lowest(reports: Sequence[Mapping[str, Any]], name: str) -> tuple[float, str]:
    """Return the lowest soft limit of a name, and the machines that have it."""
    # RLIM_INFINITY is -1.
    limits = {
        report["host"]: limit if (limit := report["limits"][name][0]) >= 0 else inf
        for report in reports
    }
    least = min(limits.values())
    return least, compress_hosts([host for host, limit in limits.items() if limit == least])


def _check_interfaces(reports: Sequence[Mapping[str, Any]]) -> Finding:
    for report in reports:
        if not _interfaces_of(report) and len(reports) > 1:
            return error(
                "interfaces",
                f"{report['host']} has no address but loopback",
                why="ranks of two nodes cannot reach each other",
                step="Ask the site which partition has a network",
            )
    common, fast = common_interfaces(reports)
    if fast:
        return ok("interfaces", f"{', '.join(fast)} on all; NCCL and Gloo can use them")
    shown = ", ".join(common[:4]) or "none in common"
    return ok("interfaces", f"{shown}; no InfiniBand or Slingshot")


def common_interfaces(reports: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the network interfaces that all machines have, and the fast ones of them.

    Not collective.

    Parameters
    ----------
    reports
        Of each machine; one at least.
    """
    common = sorted(set.intersection(*map(_interfaces_of, reports)))
    return common, [name for name in common if name.startswith(("ib", "hsn", "roce", "mlx"))]


def _interfaces_of(report: Mapping[str, Any]) -> set[str]:
    addresses = report["interfaces"]
    return {name for name, address in addresses.items() if not address.startswith("127.")}


def _check_ports(reports: Sequence[Mapping[str, Any]]) -> Finding:
    for problem, hosts in grouped(reports, lambda report: report["port"]).items():
        return error(
            "ports",
            f"no port can be bound on {hosts}: {problem}",
            why="ranks find each other through one",
            step="Ask the site which ports jobs may use",
        )
    return ok("ports", "ports can be bound")


def grouped(reports: Sequence[Mapping[str, Any]], problem_of: Any) -> dict[str, str]:
    """Return the hosts with each problem, compressed. Pure; not collective.

    Parameters
    ----------
    reports
        One for each host.
    problem_of
        Returns what is wrong with one, or None.
    """
    hosts: dict[str, list[str]] = {}
    for report in reports:
        if (problem := problem_of(report)) is not None:
            hosts.setdefault(problem, []).append(report["host"])
    return {problem: compress_hosts(names) for problem, names in hosts.items()}
