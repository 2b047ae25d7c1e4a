"""The command lines of srun and mpiexec, which start agents and ranks."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.host_list import compress_hosts, list_in_order
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.plan.resources import Placement

# Options of the job that srun takes from the environment, and that contradict --gres=none.
# With SLURM_GPUS_PER_NODE the step is refused ("Invalid Trackable RESource (TRES) specification"),
# with SLURM_MEM_PER_GPU it gets the GPUs all the same (measured with Slurm 22.05).
GPU_VARIABLES = (
    "SLURM_CPUS_PER_GPU",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_MEM_PER_GPU",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK",
)
"""Options of the job for GPUs that srun reads from the environment."""
MEMORY_VARIABLES = ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE")
"""Options of the job for memory that srun reads from the environment."""
# A step with --mem=0 runs beside those that have taken all memory of the job. One with the options
# of the job asks for some, and is refused, also with --overlap (measured with Slurm 22.05).
_ANY_MEMORY = "--mem=0"
# It would override all other options that place tasks.
_HOSTFILE = "SLURM_HOSTFILE"
STEP_VARIABLES = (
    _HOSTFILE,
    # srun warns about it if nodes have unequal numbers of ranks; otherwise the step sets it itself.
    "SLURM_NTASKS_PER_NODE",
    # srun refuses it together with --ntasks-per-node (measured with Slurm 22.05).
    "SLURM_NTASKS_PER_GPU",
)
"""Options of the job that srun reads from the environment, and that contradict a step's ranks."""
# Linux limits one argument to 128 KiB (MAX_ARG_STRLEN in include/uapi/linux/binfmts.h). Short lists
# are not compressed, so that the command is easy to read.
_MOST_NAMES = 2**16
# Otherwise a step inside a step inherits the outer one's distribution and ranks are cyclic.
_IN_BLOCKS = "--distribution=block"
# A job with --export=NONE passes that to its steps, which would not get the variables of the batch
# script (measured with Slurm 22.05).
_EXPORT = "--export=ALL"
_BESIDE_OTHERS = ("--overlap", _EXPORT)
# By default hydra kills all ranks when one dies, and then the first death cannot be identified. The
# executor detects it through the rank's agent, and ends the others.
_KEEP_RANKS = "-disable-auto-cleanup"
# Each step has CPUs of its own, and srun waits for them while another step is still ending. Steps
# that overlap are all bound to the first CPUs of a node.
_OWN_CPUS = ("--exact", _EXPORT)


def slot_step_argv(
    placement: Placement, command: Sequence[str], *, srun_args: Sequence[str]
) -> list[str]:
    """Return the command that starts the step of a slot, in which runs begin one after another.

    Not collective.

    Parameters
    ----------
    placement
        Of the workers that a run in the slot has on the node of the step, which is named.
    command
        What runs there as long as the slot is kept.
    srun_args
        As of the step of a run's ranks.
    """
    return [
        "srun",
        # MPI starts inside it, by mpiexec.
        "--mpi=none",
        "--nodes=1",
        f"--nodelist={placement.nodes[0]}",
        "--ntasks=1",
        "--ntasks-per-node=1",
        _IN_BLOCKS,
        *_OWN_CPUS,
        f"--cpus-per-task={placement.num_workers * placement.cpus_per_task}",
        "--kill-on-bad-exit=1",
        *srun_args,
        *command,
    ]


def slot_ranks_argv(
    launcher: StepLauncher, placement: Placement, command: Sequence[str]
) -> list[str]:
    """Return the command that starts all ranks in the steps of a slot.

    Not collective. On several nodes it starts none of its proxies, and prints their commands. Ranks
    have the environment of their proxy.

    Parameters
    ----------
    launcher
        That of MPICH.
    placement
        How they lie on the nodes, which are named.
    command
        The command of one rank.
    """
    if placement.num_nodes == 1:
        return worker_step_argv(launcher, placement, command, local=True)
    return [
        *(launcher.program, "-n", str(placement.num_workers)),
        *(_KEEP_RANKS, "-launcher", "manual", "-rmk", "user", "-genvnone"),
        *("-hosts", _slots(placement)),
        *command,
    ]


def worker_step_argv(
    launcher: StepLauncher,
    placement: Placement,
    command: Sequence[str],
    *,
    srun_args: Sequence[str] = (),
    export: Sequence[str] = (),
    local: bool,
    is_slice: bool = False,
) -> list[str]:
    """Return the command that starts all ranks.

    Not collective.

    Parameters
    ----------
    launcher
        The program that starts them.
    placement
        How they lie on the nodes.
    command
        The command of one rank.
    srun_args
        The user's and the site's further srun options.
    export
        Names of the variables that ranks get on other hosts, if mpiexec connects to these itself.
    local
        Whether the ranks stay on this machine, even inside an allocation.
    is_slice
        Whether ranks of other runs are on the same nodes, and may not share CPUs with these.
    """
    if launcher.kind == "srun":
        return [
            launcher.program,
            f"--mpi={launcher.pmi}",
            *_worker_step_shape(placement),
            *(_OWN_CPUS if is_slice else _BESIDE_OTHERS),
            # srun does not inherit the job's --cpus-per-task since Slurm 22.05.
            f"--cpus-per-task={placement.cpus_per_task}",
            # By default srun keeps the other ranks when one exits badly.
            "--kill-on-bad-exit=1",
            *srun_args,
            *command,
        ]
    most = placement.max_tasks_per_node
    is_listed = bool(placement.nodes) and not placement.is_even
    argv = [launcher.program, "-n", str(placement.num_workers)]
    if launcher.kind == "hydra":
        argv.append(_KEEP_RANKS)
        if local:
            # Inside an allocation hydra would start its proxies through srun.
            argv += ["-launcher", "fork", "-rmk", "user"]
        elif is_listed:
            argv += ["-hosts", _slots(placement)]
        else:
            if placement.nodes:
                argv += ["-hosts", ",".join(placement.nodes)]
            argv += ["-ppn", str(most)]
    else:
        # Open MPI binds each of two ranks to one core, and refuses more ranks than cores.
        argv += ["--oversubscribe", "--bind-to", "none"]
        if local:
            argv += ["--host", f"localhost:{placement.num_workers}"]
        else:
            if placement.nodes:
                argv += ["--host", _slots(placement)]
            argv += ["--map-by", "slot" if is_listed else f"ppr:{most}:node", *_exports(export)]
    return [*argv, *command]


def slice_srun_args(placement: Placement, *, gpus_by_task: bool = False) -> tuple[str, ...]:
    """Return the options of srun by which ranks have memory and GPUs beside those of other runs.

    Not collective. A step without them would ask for all GPUs and all memory of the job.

    Parameters
    ----------
    gpus_by_task
        Whether each rank sees only its own GPUs, and not those of all ranks of its node.
    """
    mem, gpus = placement.mem_mib_per_node, placement.gpus_per_task
    options = [_ANY_MEMORY if mem is None else f"--mem={mem}"]
    if not gpus:
        options.append("--gres=none")
    elif placement.is_even and not gpus_by_task:
        options.append(f"--gres=gpu:{placement.gpus_per_node}")
    else:
        options.append(f"--gpus-per-task={gpus}")
    return tuple(options)


def agent_step_argv(
    placement: Placement,
    command: Sequence[str],
    *,
    idle_nodes: Sequence[str] = (),
    survives_loss: bool = False,
    is_slice: bool = False,
) -> list[str]:
    """Return the command that starts one agent on each node.

    Not collective.

    Parameters
    ----------
    placement
        How the workers lie on the nodes.
    command
        The command of an agent.
    idle_nodes
        Names of nodes of the job that have no workers.
    survives_loss
        Whether the other agents stay when a node is lost.
    is_slice
        Whether ranks of other runs are on the same nodes.
    """
    num_nodes = placement.num_nodes + len(idle_nodes)
    argv = _small_step(num_nodes, (*placement.nodes, *idle_nodes), is_slice=is_slice)
    if survives_loss:
        # If the job continues without a lost node, so do its agents.
        argv += ["--no-kill", "--kill-on-bad-exit=0"]
    return [*argv, *command]


def host_agents_argv(
    mpiexec: StepLauncher, hosts: Sequence[str], command: Sequence[str], *, export: Sequence[str]
) -> list[str]:
    """Return the command that starts one agent on each host of a hostfile.

    Not collective.

    Parameters
    ----------
    export
        Names of the variables that they get there.
    """
    exports = _exports(export) if mpiexec.kind == "openmpi" else []
    return [*_one_on_each(mpiexec, hosts), *exports, *command]


def host_test_argv(mpiexec: StepLauncher, host: str) -> list[str]:
    """Return the command that succeeds if a host starts processes. Not collective."""
    return [*_one_on_each(mpiexec, (host,)), "true"]


def container_test_argv(
    nodes: Sequence[str],
    num_nodes: int,
    command: Sequence[str],
    *,
    srun_options: Sequence[str] = (),
) -> list[str]:
    """Return the command that runs one process in a container on each node. Not collective.

    Parameters
    ----------
    nodes
        Names of the nodes; empty leaves the choice to Slurm.
    num_nodes
        Their number.
    command
        The command that enters the container.
    srun_options
        Those that enter it.
    """
    # One that fails must not end the others: each says what is wrong on its node.
    return [*_small_step(num_nodes, nodes), "--kill-on-bad-exit=0", *srun_options, *command]


def node_keeper_argv(
    nodes: Sequence[str], num_nodes: int, command: Sequence[str], *, is_slice: bool = False
) -> list[str]:
    """Return the command that runs a process on each node as long as the run lasts.

    Not collective.

    Parameters
    ----------
    nodes, num_nodes
        As in `container_test_argv`.
    command
        What runs there.
    is_slice
        Whether ranks of other runs are on the same nodes.
    """
    step = _small_step(num_nodes, nodes, is_slice=is_slice)
    # The others stay when a node is lost, or one of them ends.
    return [*step, "--no-kill", "--kill-on-bad-exit=0", *command]


def node_test_argv(node: str, *, is_slice: bool = False) -> list[str]:
    """Return the command that succeeds if a node of the job starts processes. Not collective."""
    return [*_small_step(1, (node,), is_slice=is_slice), "--kill-on-bad-exit=1", "true"]


def _exports(names: Sequence[str]) -> list[str]:
    # hydra sends the whole environment, Open MPI only what is named.
    return [word for name in names for word in ("-x", name)]


def _one_on_each(mpiexec: StepLauncher, hosts: Sequence[str]) -> list[str]:
    """Return the beginning of a command that runs one process on each host."""
    argv = [mpiexec.program, "-n", str(len(hosts))]
    if mpiexec.kind == "hydra":
        # One that ends must not end the others.
        return [*argv, _KEEP_RANKS, "-hosts", ",".join(hosts), "-ppn", "1"]
    return [*argv, "--bind-to", "none", "--host", ",".join(hosts), "--map-by", "ppr:1:node"]


def _small_step(nodes: int, names: Sequence[str], *, is_slice: bool = False) -> list[str]:
    """Return the beginning of a command that runs one process on each node, next to other steps."""
    memory = MEMORY_VARIABLES if is_slice else ()
    return [
        "env",
        *(f"--unset={name}" for name in (*GPU_VARIABLES, _HOSTFILE, *memory)),
        "srun",
        "--mpi=none",
        f"--nodes={nodes}",
        *_named(names),
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        _IN_BLOCKS,
        *_BESIDE_OTHERS,
        "--cpus-per-task=1",
        # A step without GPU options requests all GPUs of the job.
        "--gres=none",
        *([_ANY_MEMORY] if is_slice else []),
    ]


def _named(nodes: Sequence[str]) -> list[str]:
    """Return what names nodes to srun, which sorts them itself."""
    names = ",".join(nodes)
    if len(names) > _MOST_NAMES:
        names = compress_hosts(nodes)
    return [f"--nodelist={names}"] if names else []


def _slots(placement: Placement) -> str:
    counts = zip(placement.nodes, placement.tasks_per_node, strict=True)
    return ",".join(f"{node}:{count}" for node, count in counts)


def _worker_step_shape(placement: Placement) -> list[str]:
    nodes, tasks = f"--nodes={placement.num_nodes}", f"--ntasks={placement.num_workers}"
    named = _named(placement.nodes)
    if placement.is_even:
        per_node = f"--ntasks-per-node={placement.max_tasks_per_node}"
        return [nodes, *named, tasks, per_node, _IN_BLOCKS]
    if placement.srun_shares_out:
        # A site's CR_Pack_Nodes would fill one node after the other.
        return [nodes, *named, tasks, f"{_IN_BLOCKS},NoPack"]
    most = placement.max_tasks_per_node
    if set(placement.tasks_per_node[:-1]) == {most}:
        return [nodes, *named, tasks, f"--distribution=plane={most}"]
    # Each name is one task. Slurm 22.05 does not accept "node1*3" for three.
    names = [
        name
        for name, count in zip(placement.nodes, placement.tasks_per_node, strict=True)
        for _ in range(count)
    ]
    listed = ",".join(names)
    if len(listed) > _MOST_NAMES:
        listed = list_in_order(names)
    named = [f"--nodelist={listed}"]
    # Slurm 24.11: "--nodes is incompatible with --distribution=arbitrary".
    return [*named, tasks, "--distribution=arbitrary"]
