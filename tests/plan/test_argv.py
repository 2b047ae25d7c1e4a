from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpctrain.plan.argv import (
    agent_step_argv,
    host_agents_argv,
    slice_srun_args,
    slot_ranks_argv,
    slot_step_argv,
    worker_step_argv,
)
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.plan.process_argv import agent_argv, worker_argv
from hpctrain.plan.resources import Placement

PLACEMENT = Placement(
    tasks_per_node=(4, 4),
    cpus_per_task=6,
    gpus_per_task=1,
    mem_bytes_per_task=None,
)
WORKER = worker_argv(
    "/env/bin/python",
    run_dir="/runs/one",
    attempt=3,
    world_size=8,
    socket="hpctrain-abc.%N",
    log_to_file=True,
)
LAUNCHERS = {
    "srun": StepLauncher(program="srun", kind="srun", pmi="pmix"),
    "hydra": StepLauncher(program="/env/bin/mpiexec", kind="hydra"),
    "openmpi": StepLauncher(program="/opt/openmpi/bin/mpiexec", kind="openmpi"),
}


def lines(argv: list[str]) -> str:
    return "\n".join(argv) + "\n"


@pytest.mark.parametrize("kind", sorted(LAUNCHERS))
@pytest.mark.parametrize("local", [True, False])
def test_the_command_that_starts_the_ranks(golden, kind: str, local: bool):
    argv = worker_step_argv(
        LAUNCHERS[kind], PLACEMENT, WORKER, srun_args=["--cpu-bind=none"], local=local
    )
    golden(f"argv/ranks-{kind}-{'local' if local else 'on-nodes'}.txt", lines(argv))


def command_of_an_agent(*addresses: str, **options: Any) -> list[str]:
    return agent_argv(
        "/env/bin/python",
        cwd="/home/me/my work",
        attempt=3,
        socket="hpctrain-abc.%N",
        secret="/runs/one/.secret-3",
        addresses=addresses,
        **options,
    )


def test_the_command_that_starts_the_agents(golden):
    command = command_of_an_agent("10.0.0.1:4711", "192.168.0.1:4711")
    golden("argv/agents.txt", lines(agent_step_argv(PLACEMENT, command)))


CHOSEN = replace(PLACEMENT, nodes=("gpu1", "gpu3"))


@pytest.mark.parametrize("kind", sorted(LAUNCHERS))
def test_ranks_start_on_the_nodes_that_are_chosen(golden, kind: str):
    argv = worker_step_argv(LAUNCHERS[kind], CHOSEN, WORKER, local=False)
    golden(f"argv/ranks-{kind}-on-chosen-nodes.txt", lines(argv))


def test_the_names_of_ten_thousand_nodes_fit_one_argument() -> None:
    # Linux takes 128 KiB.
    nodes = tuple(f"cluster-{number:05d}" for number in range(10_000))
    large = replace(PLACEMENT, nodes=nodes, tasks_per_node=(4,) * len(nodes))
    ranks = worker_step_argv(LAUNCHERS["srun"], large, ["rank"], local=False)
    for argv in (ranks, agent_step_argv(large, ["agent"])):
        assert "--nodelist=cluster-[00000-09999]" in argv
        assert max(map(len, argv)) < 2**17


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpus", {}),
        ("memory", {"gpus_per_task": 0, "mem_bytes_per_task": 3 * 2**30}),
        ("unequal", {"tasks_per_node": (3, 1)}),
    ],
)
def test_ranks_of_a_slice_share_no_cpus_memory_or_gpus(
    golden, name: str, changes: dict[str, object]
):
    placement = replace(CHOSEN, **changes)
    argv = worker_step_argv(
        LAUNCHERS["srun"],
        placement,
        ["rank"],
        srun_args=slice_srun_args(placement),
        local=False,
        is_slice=True,
    )
    assert "--overlap" not in argv
    golden(f"argv/ranks-of-a-slice-{name}.txt", lines(argv))


def test_agents_of_a_slice_take_no_memory_from_other_runs(golden):
    argv = agent_step_argv(CHOSEN, ["agent"], is_slice=True)
    golden("argv/agents-of-a-slice.txt", lines(argv))


def test_the_step_of_a_slot_has_what_all_ranks_of_a_trial_have():
    placement = replace(
        CHOSEN, nodes=("gpu1",), tasks_per_node=(2,), cpus_per_task=3, gpus_per_task=1
    )
    argv = slot_step_argv(placement, ["host"], srun_args=slice_srun_args(placement))
    assert argv == [
        *("srun", "--mpi=none", "--nodes=1", "--nodelist=gpu1", "--ntasks=1"),
        *("--ntasks-per-node=1", "--distribution=block", "--exact", "--export=ALL"),
        *("--cpus-per-task=6", "--kill-on-bad-exit=1", "--mem=0", "--gres=gpu:2", "host"),
    ]


def test_mpiexec_starts_ranks_of_a_slot_itself_on_one_node_and_prints_how_on_several():
    placement = replace(CHOSEN, nodes=("gpu1", "gpu3"), tasks_per_node=(3, 1))
    assert slot_ranks_argv(LAUNCHERS["hydra"], placement, ["rank"]) == [
        *("/env/bin/mpiexec", "-n", "4", "-disable-auto-cleanup", "-launcher", "manual"),
        *("-rmk", "user", "-genvnone", "-hosts", "gpu1:3,gpu3:1", "rank"),
    ]
    placement = replace(CHOSEN, nodes=("gpu1",), tasks_per_node=(2,))
    assert slot_ranks_argv(LAUNCHERS["hydra"], placement, ["rank"]) == [
        *("/env/bin/mpiexec", "-n", "2", "-disable-auto-cleanup", "-launcher", "fork"),
        *("-rmk", "user", "rank"),
    ]


UNEQUAL = replace(CHOSEN, tasks_per_node=(3, 1))


@pytest.mark.parametrize("kind", sorted(LAUNCHERS))
def test_nodes_get_unequal_numbers_of_ranks(golden, kind: str):
    argv = worker_step_argv(LAUNCHERS[kind], UNEQUAL, WORKER, local=False)
    golden(f"argv/ranks-{kind}-on-unequal-nodes.txt", lines(argv))


@pytest.mark.parametrize("nodes", [(), ("gpu1", "gpu3")])
def test_srun_is_not_given_numbers_that_it_finds_itself(nodes: tuple[str, ...]):
    argv = worker_step_argv(LAUNCHERS["srun"], replace(UNEQUAL, nodes=nodes), ["rank"], local=False)
    assert argv[2:6] == [
        "--nodes=2",
        *(["--nodelist=gpu1,gpu3"] if nodes else []),
        "--ntasks=4",
        "--distribution=block,NoPack",
        *([] if nodes else ["--overlap"]),
    ]


@pytest.mark.parametrize(
    ("counts", "nodelist", "distribution"),
    [
        ((3, 1), "gpu1,gpu3", "plane=3"),
        ((3, 3, 2), "gpu1,gpu3,gpu4", "plane=3"),
        ((1, 3), "gpu1,gpu3,gpu3,gpu3", "arbitrary"),
        ((3, 1, 2), "gpu1,gpu1,gpu1,gpu3,gpu4,gpu4", "arbitrary"),
    ],
)
def test_srun_is_given_numbers_that_it_would_not_find(counts, nodelist: str, distribution: str):
    names = ("gpu1", "gpu3", "gpu4")[: len(counts)]
    ordered = replace(PLACEMENT, tasks_per_node=counts, nodes=names, srun_shares_out=False)
    argv = worker_step_argv(LAUNCHERS["srun"], ordered, ["rank"], local=False)
    assert argv[2 : argv.index("--overlap")] == [
        *([] if distribution == "arbitrary" else [f"--nodes={len(counts)}"]),
        f"--nodelist={nodelist}",
        f"--ntasks={sum(counts)}",
        f"--distribution={distribution}",
    ]


def test_the_names_of_ten_thousand_ranks_fit_one_argument() -> None:
    nodes = tuple(f"frontier{number:05d}" for number in range(1300))
    counts = tuple(7 + number % 2 for number in range(1300))
    large = replace(PLACEMENT, nodes=nodes, tasks_per_node=counts, srun_shares_out=False)
    argv = worker_step_argv(LAUNCHERS["srun"], large, ["rank"], local=False)
    (names,) = (word for word in argv if word.startswith("--nodelist="))
    assert names.startswith(f"--nodelist=frontier[{'00000,' * 7}{'00001,' * 8}00002")
    assert len(names) < 2**17


@pytest.mark.parametrize("kind", ["hydra", "openmpi"])
def test_agents_and_ranks_on_the_hosts_of_a_hostfile(golden, kind: str):
    command = agent_argv(
        "/env/bin/python",
        cwd="/home/me",
        attempt=3,
        socket="hpctrain-abc.%N",
        secret="/runs/one/.secret-3",
        addresses=["10.0.0.1:4711"],
        lease_s=30.0,
        hosts=["gpu1", "gpu3"],
    )
    agents = host_agents_argv(LAUNCHERS[kind], ["gpu1", "gpu3"], command, export=["PATH", "HOME"])
    ranks = worker_step_argv(
        LAUNCHERS[kind], CHOSEN, WORKER, export=["PATH", "OMP_NUM_THREADS"], local=False
    )
    golden(f"argv/hosts-{kind}.txt", f"{lines(agents)}\n{lines(ranks)}")


def test_agents_of_a_run_that_goes_on_without_a_node(golden):
    command = command_of_an_agent("10.0.0.1:4711", lease_s=30.0)
    argv = agent_step_argv(CHOSEN, command, idle_nodes=["gpu4"], survives_loss=True)
    golden("argv/agents-of-chosen-and-idle-nodes.txt", lines(argv))


def test_agents_hold_no_gpus_and_the_secret_itself_is_not_in_their_command():
    command = agent_argv(
        "python", cwd="/", attempt=1, socket="s", secret="/file", addresses=["a:1"]
    )
    argv = agent_step_argv(PLACEMENT, command)
    assert "--gres=none" in argv
    assert "--unset=SLURM_GPUS_PER_NODE" in argv[: argv.index("srun")]
    assert argv[-3:] == ["s", "/file", "a:1"]
