"""The probe of a doctor: inside an allocation, or on this machine, what the ranks would find.

As a program it is what a short job runs::

    python -m hpctrain.doctor.probe SETTINGS.json ANSWER.json
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.container import Container
from hpctrain.doctor.machine import ANSWERS, describe_machine
from hpctrain.errors import HpctrainError, LaunchError
from hpctrain.execute.node_environment import expand_place
from hpctrain.execute.rank_container import RankContainer
from hpctrain.execute.step_launcher import find_mpiexec, find_step_launcher, launcher_variables
from hpctrain.plan.argv import worker_step_argv
from hpctrain.plan.container import Entry
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.plan.resources import Placement
from hpctrain.slurm.pmi import offered_pmi_types

_NUM_RANKS = 2
# Of a step on all nodes, before the command.
_ONE_A_NODE = ("srun", "--mpi=none", "--overlap", "--export=ALL", "--ntasks-per-node=1")


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """What is probed."""

    storage: str
    modules: tuple[str, ...]
    """Modules that a rank imports."""
    mpi: str
    """As in ``SlurmConfig(mpi=...)``."""
    srun_args: tuple[str, ...] = ()
    tasks_per_node: tuple[int, ...] = (_NUM_RANKS,)
    """Ranks on each of the nodes that are probed."""
    cpus_per_task: int = 1
    gpus_per_task: int = 0
    in_allocation: bool = False
    """Whether ranks start through Slurm; else on this machine."""
    container: Container | None = None
    """What ranks run in, with all that it mounts."""
    container_modules: tuple[str, ...] = ()
    """Modules that a rank imports there."""
    pack: str = ""
    """File of the packed environment that ranks start in."""
    pack_dir: str = ""
    """As in ``SlurmConfig(environment_pack_dir=...)``."""

    @classmethod
    def read(cls, path: Path) -> ProbeSettings:
        """Return what `write` wrote. Not collective."""
        fields: dict[str, Any] = json.loads(path.read_bytes())
        values: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()
        }
        if values["container"] is not None:
            values["container"] = Container(**values["container"])
        return cls(**values)

    def write(self, path: Path) -> None:
        """Write them into a file. Not collective."""
        path.write_text(json.dumps(asdict(self)))


def probe(settings: ProbeSettings) -> dict[str, Any]:
    """Return what the nodes and the ranks of an allocation find, as JSON values.

    Not collective. Takes some seconds, and on a slow filesystem as long as the imports.
    """
    began_at = time.time()
    container, no_container = _probe_container(settings)
    worlds: dict[str, Any] = {}
    chosen = no_launcher = ""
    if not no_container:
        try:
            worlds, chosen = _probe_worlds(settings, container)
        except HpctrainError as error:
            no_launcher = str(error)
    return {
        "host": socket.gethostname(),
        "machines": _probe_machines(settings),
        "worlds": worlds,
        "chosen": chosen,
        "no_launcher": no_launcher,
        "no_container": no_container,
        "ranks": _probe_ranks(settings),
        **_probe_places(settings),
        "began_at": began_at,
        "time": time.time(),
    }


def _probe_container(settings: ProbeSettings) -> tuple[RankContainer | None, str]:
    """Return the container of the ranks, and why they cannot start in it."""
    if settings.container is None:
        return None, ""
    storage = Path(settings.storage)
    container = RankContainer(settings.container, run_dir=storage, num_gpus=0)
    try:
        with TemporaryDirectory(prefix=".doctor-", dir=storage) as folder:
            container.check(
                (),
                len(settings.tasks_per_node),
                log=Path(folder, "container.out"),
                modules=settings.container_modules,
            )
    except HpctrainError as error:
        return container, str(error)
    return container, ""


def _probe_machines(settings: ProbeSettings) -> list[dict[str, Any]]:
    if not settings.in_allocation:
        return [describe_machine(Path(settings.storage), settings.modules)]
    step = [*_ONE_A_NODE, f"--nodes={len(settings.tasks_per_node)}"]
    skews = _probe_clocks(step)
    module = [sys.executable, "-m", "hpctrain.doctor.machine", settings.storage, *settings.modules]
    limit_s = timeouts.DOCTOR_STEP_S + timeouts.DOCTOR_IMPORT_S
    with TemporaryDirectory(prefix=".doctor-", dir=settings.storage) as folder:
        # In files: srun may mix long lines of two nodes.
        _print_of([*step, *module], timeout_s=limit_s, variables={ANSWERS: folder})
        machines = [json.loads(path.read_bytes()) for path in Path(folder).glob("*.json")]
    return [
        {**machine, "skew_s": skews.get(machine["host"])}
        for machine in sorted(machines, key=lambda machine: machine["host"])
    ]


def _probe_places(settings: ProbeSettings) -> dict[str, Any]:
    """Return what nodes have for a packed environment, and where it would be."""
    if not settings.pack:
        return {}
    try:
        place = expand_place(settings.pack_dir)
    except HpctrainError as error:
        return {"place": "", "no_place": str(error)}
    module = [sys.executable, "-m", "hpctrain.doctor.pack", settings.pack, place]
    step = [*_ONE_A_NODE, f"--nodes={len(settings.tasks_per_node)}"]
    found, _ = _run([*step, *module], timeout_s=timeouts.DOCTOR_STEP_S)
    return {"place": place, "places": found}


def _probe_clocks(step: Sequence[str]) -> dict[str, float]:
    """Return by how many seconds at least the clock of each node is ahead of this one's."""
    begin = time.time()
    said = _print_of([*step, "sh", "-c", 'echo "$(uname -n) $(date +%s.%N)"'])
    end = time.time()
    skews = {}
    for host, text in re.findall(r"^(\S+) (\d+\.\d+)$", said, re.MULTILINE):
        at = float(text)
        skews[host] = max(at - end, 0.0) + min(at - begin, 0.0)
    return skews


def _probe_worlds(
    settings: ProbeSettings, container: RankContainer | None
) -> tuple[dict[str, Any], str]:
    """Return the world that each launcher makes of two ranks, and the launcher that a run uses."""
    num_nodes = min(len(settings.tasks_per_node), _NUM_RANKS)
    placement = Placement(
        tasks_per_node=(1,) * num_nodes if num_nodes > 1 else (_NUM_RANKS,),
        cpus_per_task=1,
        gpus_per_task=0,
        mem_bytes_per_task=None,
    )
    library = None if container is None else container.library
    launchers, chosen = _launchers(settings, library=library)
    python = sys.executable if container is None else container.container.python
    worlds = {}
    for launcher in launchers:
        entry = Entry(argv=(python, "-m", "hpctrain.doctor.world"))
        if container is not None:
            if launcher.kind != "srun" and container.is_entered_by_srun:
                continue
            entry = container.enter(entry.argv, launcher, {})
        argv = worker_step_argv(
            launcher,
            placement,
            entry.argv,
            srun_args=entry.srun_options,
            local=not settings.in_allocation,
        )
        variables = launcher_variables(launcher.kind, local=not settings.in_allocation)
        ranks, printed = _run(argv, timeout_s=timeouts.DOCTOR_STEP_S, variables=variables)
        worlds[_name(launcher)] = {"wanted": _NUM_RANKS, "ranks": ranks, "output": printed[-2000:]}
    return worlds, chosen


def _launchers(settings: ProbeSettings, *, library: str | None) -> tuple[list[StepLauncher], str]:
    """Return every launcher that there is, and the name of the one that a run uses."""
    launchers = []
    if settings.in_allocation:
        offered = offered_pmi_types() - {"none"}
        # Of "pmix" and "pmix_v4" the first is the second.
        names = sorted(n for n in offered if not (n.startswith("pmix_") and "pmix" in offered))
        launchers = [StepLauncher(program="srun", kind="srun", pmi=name) for name in names]
        chosen = find_step_launcher(settings.mpi, library=library)
    else:
        chosen = find_mpiexec(settings.mpi)
    try:
        launchers.append(find_mpiexec("auto"))
    except LaunchError:
        pass
    if chosen not in launchers:
        launchers.append(chosen)
    return launchers, _name(chosen)


def _name(launcher: StepLauncher) -> str:
    return f"srun --mpi={launcher.pmi}" if launcher.kind == "srun" else launcher.program


def _probe_ranks(settings: ProbeSettings) -> list[dict[str, Any]]:
    """Return the CPUs and GPUs of each rank, started with the options of a run."""
    if not settings.in_allocation:
        return []
    placement = Placement(
        tasks_per_node=settings.tasks_per_node,
        cpus_per_task=settings.cpus_per_task,
        gpus_per_task=0,
        mem_bytes_per_task=None,
    )
    argv = worker_step_argv(
        StepLauncher(program="srun", kind="srun", pmi="none"),
        placement,
        [sys.executable, "-m", "hpctrain.doctor.world", "--no-mpi"],
        srun_args=settings.srun_args,
        local=False,
    )
    return _run(argv, timeout_s=timeouts.DOCTOR_STEP_S)[0]


def _run(
    argv: Sequence[str], *, timeout_s: float, variables: Mapping[str, str] | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Return the JSON objects that a command printed, a line each, and all that it printed."""
    printed = _print_of(argv, timeout_s=timeout_s, variables=variables)
    found = []
    for line in printed.splitlines():
        # A launcher may put the rank in front.
        begin = line.find("{")
        try:
            value = json.loads(line[begin:]) if begin >= 0 else None
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found, printed


def _print_of(
    argv: Sequence[str],
    *,
    timeout_s: float = timeouts.DOCTOR_STEP_S,
    variables: Mapping[str, str] | None = None,
) -> str:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**environ.environment(), **(variables or {})},
        )
    except FileNotFoundError:
        return f"{argv[0]} is not on PATH"
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace") if error.stdout else ""
        return f"{said}\nit did not end within {timeouts.describe(timeout_s)}"
    return done.stdout


def main() -> None:
    """Probe, and write the answer whole."""
    settings, answer = ProbeSettings.read(Path(sys.argv[1])), Path(sys.argv[2])
    part = answer.with_suffix(".part")
    part.write_text(json.dumps(probe(settings)))
    os.replace(part, answer)


if __name__ == "__main__":
    main()
