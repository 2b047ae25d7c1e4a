"""Ranks and agents in the steps of a slot on two nodes, which are processes of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.errors import LaunchError
from hpctrain.execute.process import descendants
from hpctrain.execute.slot_host import MODULE
from hpctrain.execute.slot_nodes import SlotNodes
from hpctrain.execute.slot_processes import NodeProcesses, ProxyCommands
from hpctrain.execute.slot_request import digest_variables
from hpctrain.execute.slot_step import SlotProcess, make_ticket
from hpctrain.execute.step_launcher import find_own_hydra
from hpctrain.plan.resources import Placement
from hpctrain.plan.spec import RankSettings
from tests.plans import SETTINGS
from tests.waiting import wait_until
from tests.worker.programs import is_alive

PLACEMENT = Placement(
    tasks_per_node=(2, 1),
    nodes=("node-a", "node-b"),
    cpus_per_task=1,
    gpus_per_task=0,
    mem_bytes_per_task=None,
)
RANK = """
import os, sys, time

import mpi4py.MPI
from hpctrain.worker.mpi import initialize

world = initialize()
node = world.Split_type(mpi4py.MPI.COMM_TYPE_SHARED)
names = ("SLURMD_NODENAME", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE", "ASKED")
with open(f"/proc/{os.getppid()}/cmdline") as parent:
    is_forked = "hpctrain.worker.fork_server" in parent.read()
words = [
    *("rank", world.rank, world.size, node.rank, node.size, is_forked, os.getpid()),
    *(os.environ.get(name) for name in names),
    *("HPCTRAIN_SLOT_SERVER" in os.environ, sum(world.allgather(world.rank)), "end"),
]
os.write(1, f"{' '.join(map(str, words))}\\n".encode())
if "waits" in sys.argv:
    time.sleep(600)
"""


@pytest.fixture
def hosts() -> Iterator[list[subprocess.Popen[bytes]]]:
    """What holds the step of each node."""
    with ExitStack() as stack:
        started = []
        for node in PLACEMENT.nodes:
            printed = stack.enter_context(open(os.memfd_create("printed"), "wb"))
            # What Slurm has set in its step.
            environment = {**os.environ, "SLURMD_NODENAME": node, "SLURM_NODEID": "0"}
            host = subprocess.Popen(
                [sys.executable, "-m", MODULE],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=printed,
            )
            stack.callback(host.wait, 60)
            stack.callback(host.kill)
            started.append(host)
            assert host.stdin is not None
            host.stdin.write(json.dumps(digest_variables(os.environ)).encode() + b"\n")
            host.stdin.flush()
        yield started
        for host in started:
            assert host.stdin is not None
            host.stdin.close()


@pytest.fixture
def settings() -> RankSettings:
    return SETTINGS


@pytest.fixture
def slot(hosts: list[subprocess.Popen[bytes]], settings: RankSettings) -> SlotNodes:
    tickets = ",".join(make_ticket(host.pid, f"mark-of-{host.pid}") for host in hosts)
    return SlotNodes(tickets, settings, nodes=PLACEMENT.nodes)


Start = Callable[..., "SlotProcess | NodeProcesses"]


@pytest.fixture
def start(slot: SlotNodes, tmp_path: Path) -> Iterator[Start]:
    """Start ranks that say where they are."""
    if not find_own_hydra():
        pytest.skip("needs the MPICH of this environment")
    (tmp_path / "program.py").write_text(RANK)
    started = []

    def start(*arguments: str, **variables: str) -> SlotProcess | NodeProcesses:
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        ranks = slot.start_ranks(
            [sys.executable, "-m", "program", *arguments],
            placement=PLACEMENT,
            environment={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, paths)]),
                "ASKED": "yes",
                **variables,
            },
            log=tmp_path / "log",
        )
        started.append(ranks)
        return ranks

    yield start
    for ranks in started:
        ranks.kill()


def said(ranks: SlotProcess | NodeProcesses) -> list[list[str]]:
    lines = [line.split() for line in ranks.last_lines(100).splitlines()]
    return sorted(line for line in lines if line[:1] == ["rank"] and line[-1] == "end")


@pytest.mark.mpi
def test_ranks_of_two_nodes_are_one_world_forked_on_their_nodes(start: Start) -> None:
    for _ in range(2):
        ranks = start()
        assert ranks.wait(60) == 0, ranks.last_lines(100)
        found = [[*words[1:6], *words[7:]] for words in said(ranks)]
        of_all = ["3", "2,1", "yes", "False", "3", "end"]
        assert found == [
            ["0", "3", "0", "2", "True", "node-a", "0", *of_all],
            ["1", "3", "1", "2", "True", "node-a", "0", *of_all],
            ["2", "3", "0", "1", "True", "node-b", "1", *of_all],
        ], ranks.last_lines(100)
        assert "HYDRA_LAUNCH" not in ranks.last_lines(100)
        ranks.kill()


@pytest.mark.mpi
@pytest.mark.parametrize("settings", [replace(SETTINGS, preload_for_trials=("library",))])
def test_ranks_are_forked_without_a_module_for_trials_that_starts_a_thread(
    start: Start, tmp_path: Path
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    paths = [str(tmp_path), str(packages), os.environ.get("PYTHONPATH", "")]
    are_forked = []
    for _ in range(2):
        ranks = start(PYTHONPATH=os.pathsep.join(filter(None, paths)))
        assert ranks.wait(60) == 0, ranks.last_lines(100)
        are_forked.append([words[5] for words in said(ranks)])
        ranks.kill()
    assert are_forked == [3 * ["False"], 3 * ["True"]]


@pytest.mark.mpi
def test_ranks_of_two_nodes_are_killed_on_both(start: Start) -> None:
    ranks = start("waits")
    wait_until(lambda: len(said(ranks)) == 3, lambda: ranks.last_lines(100))
    pids = [int(words[6]) for words in said(ranks)]
    assert all(map(is_alive, pids))
    ranks.kill()
    assert not any(map(is_alive, pids))


@pytest.mark.mpi
@pytest.mark.parametrize("number", [0, 1])
def test_the_launcher_ends_with_the_step_of_a_node(
    start: Start, hosts: list[subprocess.Popen[bytes]], number: int
) -> None:
    ranks = start("waits")
    wait_until(lambda: len(said(ranks)) == 3, lambda: ranks.last_lines(100))
    # Slurm kills all that is in the step.
    for pid in (*descendants(hosts[number].pid), hosts[number].pid):
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    assert ranks.wait(60) != 0
    ranks.kill()


@pytest.mark.mpi
def test_a_launcher_that_starts_nothing_says_why(start: Start) -> None:
    with pytest.raises(LaunchError, match="on node-a: mpiexec did not print") as seen:
        start(MPIEXEC_PORT_RANGE="bogus")
    assert seen.value.transient


def test_agents_of_two_nodes_end_together(slot: SlotNodes, tmp_path: Path) -> None:
    agents = slot.start_agents(
        [sys.executable, "-m", "agent", "not a number"],
        nodes=PLACEMENT.nodes,
        environment=dict(os.environ),
        log=tmp_path / "agents",
    )
    assert agents is not None
    assert agents.wait(60) == 1
    agents.kill()
    assert agents.last_lines(100).count("ValueError") == 2


def test_a_slot_of_which_one_step_is_gone_is_given_up(
    slot: SlotNodes,
    hosts: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    hosts[1].kill()
    hosts[1].wait(60)
    log = tmp_path / "agents"
    command = [sys.executable, "-m", "agent"]
    assert slot.start_agents(command, nodes=PLACEMENT.nodes, environment={}, log=log) is None
    assert not slot.is_usable
    assert "step of its slot: on node-b: it has ended" in capfd.readouterr().err


def test_a_run_on_other_nodes_than_those_of_its_slot_gives_it_up(
    slot: SlotNodes, tmp_path: Path
) -> None:
    log = tmp_path / "agents"
    assert slot.start_agents(["agent"], nodes=("node-a",), environment={}, log=log) is None
    assert not slot.is_usable


PRINTED = (
    b"a warning\n"
    b"HYDRA_LAUNCH: /a b/hydra_pmi_proxy --control-port n:1 --pgid 0 --proxy-id 1 \n"
    b"HYDRA_LAUNCH: /a b/hydra_pmi_proxy --control-port n:1 --pgid 0 --proxy-id 0 \n"
    b"HYDRA_LAUNCH_END\n"
    b"of a rank\nwithout an end"
)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_commands_of_proxies_are_found_in_what_mpiexec_prints(size: int) -> None:
    found = ProxyCommands()
    passed = b"".join(
        found.take(PRINTED[begin : begin + size]) for begin in range(0, len(PRINTED), size)
    )
    assert found.is_complete
    assert found.commands == {
        number: [
            *("/a b/hydra_pmi_proxy", "--control-port", "n:1", "--pgid", "0"),
            *("--proxy-id", str(number)),
        ]
        for number in range(2)
    }
    assert passed == b"a warning\nof a rank\nwithout an end"


def test_what_an_mpiexec_prints_that_fails_is_for_the_log() -> None:
    found = ProxyCommands()
    assert found.take(b"no such option\nand") == b"no such option\n"
    assert not found.is_complete
    assert found.take_rest() == b"and"
