"""The fork server of a step of Slurm with real processes: the first client of a node starts it."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain import environ
from hpctrain.execute.rank_forks import client_variables, system_python
from hpctrain.execute.step_fork_servers import StepForkServers
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.worker.fork_client import place_on_node
from tests.waiting import wait_until
from tests.worker.programs import STATE, WAITS, Program, is_alive

# Where nothing runs that could be forked: who has made this process, and why not a server.
TELLS = """
    import os
    print(os.getpid(), os.getppid(), os.environ.get("HPCTRAIN_NOT_FORKED", "forked"), flush=True)
"""
_SECONDS, _PATIENCE = 5, 6


class Step:
    """The ranks that Slurm starts on a node for one command."""

    def __init__(self, folder: Path, source: str, *modules: str, **variables: str) -> None:
        inherited = environ.without_launcher_variables(os.environ)
        self.variables = {**inherited, "OMP_NUM_THREADS": "1", **variables}
        for name in [n for n in self.variables if n.startswith("SLURM")]:
            del self.variables[name]
        self.program = Program(folder, self.variables, source)
        self.servers = StepForkServers(modules or ("json", "tempfile"), own_places=())
        self.argv = self.servers.command(self.program.plain, self.variables)
        self.started: list[subprocess.Popen[str]] = []

    def place(self, rank: int, size: int) -> dict[str, str]:
        """Return the environment of a rank."""
        return {
            **self.variables,
            "SLURM_LOCALID": str(rank),
            "SLURM_PROCID": str(4 + rank),
            "SLURM_NODEID": "1",
            "SLURM_STEP_TASKS_PER_NODE": f"4,{size}",
            "SLURMD_NODENAME": "node2",
        }

    def start(
        self, rank: int, size: int, *, argv: list[str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a rank."""
        options = {"env": self.place(rank, size), **options}
        self.started.append(self.program.start(argv or self.argv, **options))
        return self.started[-1]

    def run(self, size: int, **options: Any) -> list[list[str]]:
        """Run all ranks, the first one last; return what each has printed: its words."""
        ranks = [self.start(rank, size, **options) for rank in reversed(range(size))]
        ended = [rank.communicate(timeout=60) for rank in reversed(ranks)]
        assert [rank.returncode for rank in ranks] == [0] * size, ended
        return [printed.split(maxsplit=2) for printed, _ in ended]

    def close(self) -> None:
        """End what is left."""
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def make_step(tmp_path: Path) -> Iterator[Callable[..., Step]]:
    made: list[Step] = []

    def make(source: str, *modules: str, **variables: str) -> Step:
        made.append(Step(tmp_path, source, *modules, **variables))
        return made[-1]

    yield make
    for step in made:
        step.close()


@pytest.fixture
def library(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Return what installs a package ``library``: the variables by which it is found."""

    def install(source: str) -> dict[str, str]:
        packages = tmp_path / "site-packages"
        packages.mkdir()
        (packages / "library.py").write_text(source)
        paths = filter(None, [str(packages), os.environ.get("PYTHONPATH")])
        return {"PYTHONPATH": os.pathsep.join(paths)}

    return install


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_ranks_of_a_node_have_one_server_which_the_first_has_started(
    make_step: Callable[..., Step],
) -> None:
    step = make_step(WAITS)
    ranks = [step.start(rank, 3, stdin=subprocess.PIPE) for rank in (2, 1, 0)]
    pids = []
    for rank in ranks:
        assert rank.stdout is not None
        pids.append(int(rank.stdout.readline().split()[0]))
    assert not {rank.pid for rank in ranks} & set(pids)
    (server,) = {parent(pid) for pid in pids}
    assert parent(server) == ranks[-1].pid
    # The first rank may end first.
    for rank in reversed(ranks):
        assert is_alive(server)
        rank.communicate(timeout=60)
        assert rank.returncode == 4
    wait_until(lambda: not is_alive(server), "the server outlives its step")


@pytest.mark.parametrize("is_on_node", [True, False])
def test_a_forked_rank_is_in_the_state_that_slurm_made(
    is_on_node: bool, make_step: Callable[..., Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_on_node:
        monkeypatch.setenv("SLURMD_NODENAME", "node1")
    step = make_step(STATE)
    cpus = sorted(os.sched_getaffinity(0))

    def prepare(rank: int) -> Callable[[], None]:
        def change() -> None:
            os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
            os.umask(0o020 + rank)
            os.nice(rank)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            Path("/proc/self/oom_score_adj").write_text(str(100 + rank))

        return change

    found = []
    for argv in (step.program.plain, step.argv):
        options: Any = [
            {
                "argv": argv,
                "preexec_fn": prepare(rank),
                "start_new_session": True,
                "env": {
                    **step.place(rank, 2),
                    "CUDA_VISIBLE_DEVICES": str(rank),
                    **client_variables(argv),
                },
            }
            for rank in range(2)
        ]
        ranks = [step.start(rank, 2, **options[rank]) for rank in (1, 0)]
        printed = [rank.communicate(timeout=60)[0].splitlines() for rank in ranks]
        found.append([json.loads(state) for state, _ in printed])
        is_forked = argv is step.argv
        assert [int(pid) != rank.pid for rank, (_, pid) in zip(ranks, printed, strict=True)] == [
            is_forked
        ] * 2
    assert found[1] == found[0]


def test_the_only_rank_of_a_node_imports_for_itself(make_step: Callable[..., Step]) -> None:
    step = make_step(TELLS)
    ((pid, _, said),) = step.run(1)
    assert (int(pid), said.strip()) == (step.started[0].pid, "forked")


UNUSABLE = {
    "mpi": ("from mpi4py import MPI", "the import of library loads MPI, which each rank"),
    "fails": ("import missing_library", "the import of library fails: ModuleNotFoundError"),
}


@pytest.mark.parametrize("which", UNUSABLE)
def test_each_rank_learns_why_a_server_does_not_serve(
    which: str, make_step: Callable[..., Step], library: Callable[[str], dict[str, str]]
) -> None:
    source, reason = UNUSABLE[which]
    step = make_step(TELLS, "json", "library", **library(source))
    words = step.run(3)
    assert [int(pid) for pid, *_ in words] == [rank.pid for rank in reversed(step.started)]
    assert len({said for *_, said in words}) == 1
    assert reason in words[0][2]


def test_a_server_that_dies_while_it_imports_is_explained_by_its_last_words(
    make_step: Callable[..., Step], library: Callable[[str], dict[str, str]]
) -> None:
    variables = library("import os; os.write(2, b'no licence'); os._exit(5)")
    (_, _, first), *others = make_step(TELLS, "library", **variables).run(3)
    assert first.strip() == "the fork server of a node ended while it imported: no licence"
    # They know no more, and do not guess.
    assert [said.strip() for *_, said in others] in (
        ["forked"] * 2,
        ["the first rank of its node had no fork server after 10 s"] * 2,
    )
    assert {int(ppid) for _, ppid, _ in others} == {os.getpid()}


def test_ranks_import_for_themselves_when_the_first_is_killed_during_the_import(
    make_step: Callable[..., Step],
    library: Callable[[str], dict[str, str]],
    tmp_path: Path,
) -> None:
    begun = tmp_path / "begun"
    variables = library(
        f"import os, time\nopen({str(begun) + '.new'!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(begun) + '.new'!r}, {str(begun)!r})\ntime.sleep(60)"
    )
    step = make_step(TELLS, "library", **variables)
    second, first = step.start(1, 2), step.start(0, 2)
    wait_until(begun.exists, process=first)
    server = int(begun.read_text())
    first.kill()
    printed, _ = second.communicate(timeout=60)
    assert int(printed.split()[0]) == second.pid
    wait_until(lambda: not is_alive(server), "the server outlives its owner")


def test_a_first_rank_that_does_not_come_is_not_waited_for_for_ever(
    make_step: Callable[..., Step],
) -> None:
    step = make_step(TELLS)
    argv = [*step.argv[:_PATIENCE], "0.1", *step.argv[_PATIENCE + 1 :]]
    rank = step.start(1, 2, argv=argv)
    pid, _, said = rank.communicate(timeout=60)[0].split(maxsplit=2)
    assert int(pid) == rank.pid
    assert said.strip() == "the first rank of its node had no fork server after 0.1 s"


def test_an_import_without_end_is_given_up(
    make_step: Callable[..., Step], library: Callable[[str], dict[str, str]]
) -> None:
    step = make_step(TELLS, "library", **library("import time; time.sleep(60)"))
    argv = [*step.argv[:_SECONDS], "0.5", *step.argv[_SECONDS + 1 :]]
    words = step.run(2, argv=argv)
    assert [int(pid) for pid, *_ in words] == [rank.pid for rank in reversed(step.started)]
    assert "the imports of the fork server took longer than 0.5 s" in words[0][2]


def waiting(step: Step, size: int) -> tuple[list[subprocess.Popen[str]], list[int]]:
    """Return the clients of ranks that wait for their input, by number, and their processes."""
    clients = [step.start(rank, size, stdin=subprocess.PIPE) for rank in range(size)]
    pids = []
    for client in clients:
        assert client.stdout is not None
        pids.append(int(client.stdout.readline().split()[0]))
    return clients, pids


def test_a_signal_for_all_processes_of_a_step_ends_no_rank_that_handles_it(
    make_step: Callable[..., Step],
) -> None:
    clients, pids = waiting(make_step(WAITS), 2)
    server = parent(pids[0])
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        # Not the rank itself, which gets it from its client.
        for pid in (server, *(client.pid for client in clients)):
            os.kill(pid, number)
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline().strip() == number.name
    assert is_alive(server)
    for client in clients:
        client.communicate(timeout=60)
        assert client.returncode == 4


def test_a_rank_dies_with_its_client_and_no_other_rank_does(
    make_step: Callable[..., Step],
) -> None:
    clients, pids = waiting(make_step(WAITS), 3)
    server = parent(pids[0])
    # The first one has started the server.
    for dead in (0, 1):
        clients[dead].kill()
        clients[dead].communicate(timeout=60)
        wait_until(lambda pid=pids[dead]: not is_alive(pid), "the rank outlives its client")
    assert is_alive(server)
    clients[2].communicate(timeout=60)
    assert clients[2].returncode == 4
    wait_until(lambda: not is_alive(server), "the server outlives its step")


def test_ranks_outlive_the_server_of_their_step(make_step: Callable[..., Step]) -> None:
    clients, pids = waiting(make_step(WAITS), 2)
    server = parent(pids[0])
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not is_alive(server))
    for client in clients:
        client.send_signal(signal.SIGUSR1)
        assert client.stdout is not None
        assert client.stdout.readline().strip() == "SIGUSR1"
    for client in clients:
        _, errors = client.communicate(timeout=60)
        assert "how this rank ended is unknown" in errors


# Where this process may make cgroups below its own; version 1, version 2 beside it, and alone.
CGROUPS = {"memory": "memory", "": "unified"}


@pytest.fixture
def make_cgroup() -> Iterator[Callable[..., Path]]:
    made: list[Path] = []
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    places = [
        (controllers, Path("/sys/fs/cgroup", folder) / path.lstrip("/"))
        for _, controllers, path in lines
        for folder in (
            ([CGROUPS[controllers]] if controllers in CGROUPS else []) + [""] * (controllers == "")
        )
    ]

    def make(name: str, *only: str) -> Path:
        for place in [place for controllers, place in places if controllers in (only or CGROUPS)]:
            top = place / f"hpctrain-test-{secrets.token_hex(4)}"
            try:
                top.mkdir()
            except OSError:
                continue
            made.append(top)
            (top / name).mkdir()
            made.append(top / name)
            if (top / name / "cgroup.procs").exists():
                return top / name
        pytest.skip("this process may make no cgroup")

    yield make
    for path in reversed(made):
        # A process that has just ended is counted for a moment.
        deadline = time.monotonic() + 10
        while path.exists() and time.monotonic() < deadline:
            try:
                path.rmdir()
            except OSError:
                time.sleep(0.02)


def entering(cgroup: Path) -> Callable[[], None]:
    return lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid())) and None


LIMITS = ("memory.max", "memory.limit_in_bytes", "pids.max")


def test_a_rank_in_a_cgroup_with_a_limit_of_its_own_imports_for_itself(
    make_step: Callable[..., Step], make_cgroup: Callable[..., Path]
) -> None:
    step = make_step(TELLS)
    cgroup = make_cgroup("limited")
    try:
        limit = next(cgroup / name for name in LIMITS if (cgroup / name).exists())
    except StopIteration:
        pytest.skip("the cgroups that this process may make limit nothing")
    limit.write_text(str(2**30 if limit.name.startswith("memory") else 100))
    second = step.start(1, 2, preexec_fn=entering(cgroup))
    first = step.start(0, 2)
    pid, _, said = second.communicate(timeout=60)[0].split(maxsplit=2)
    assert int(pid) == second.pid
    assert said.startswith("the launcher puts ranks into cgroups of their own, whose limits count")
    assert f"{limit.name} is " in said
    assert int(first.communicate(timeout=60)[0].split()[0]) != first.pid


def test_ranks_in_cgroups_that_only_count_are_forked(
    make_step: Callable[..., Step], make_cgroup: Callable[..., Path]
) -> None:
    step = make_step(TELLS)
    # The server may end with the first rank, which waits for nobody here.
    ranks = [
        step.start(rank, 2, preexec_fn=entering(make_cgroup(f"task_{rank}"))) for rank in (1, 0)
    ]
    for rank in ranks:
        pid, _, said = rank.communicate(timeout=60)[0].split(maxsplit=2)
        assert said.strip() == "forked"
        assert int(pid) != rank.pid


def test_tasks_that_may_have_gpus_of_their_own_start_no_server(
    make_step: Callable[..., Step], make_cgroup: Callable[..., Path]
) -> None:
    step = make_step(TELLS, CUDA_VISIBLE_DEVICES="0")
    ranks = [
        step.start(rank, 2, preexec_fn=entering(make_cgroup(f"task_{rank}", "")))
        for rank in range(2)
    ]
    for rank in ranks:
        pid, _, said = rank.communicate(timeout=60)[0].split(maxsplit=2)
        assert int(pid) == rank.pid
        assert said.startswith(
            "Slurm puts ranks into cgroups of their own, which may limit the GPUs"
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a UTS namespace")
def test_a_rank_in_another_namespace_imports_for_itself(make_step: Callable[..., Step]) -> None:
    step = make_step(TELLS)
    second = step.start(1, 2, argv=["unshare", "--uts", *step.argv])
    first = step.start(0, 2)
    pid, _, said = second.communicate(timeout=60)[0].split(maxsplit=2)
    assert int(pid) == second.pid
    assert said.startswith("the launcher gives ranks another uts namespace: uts:[")
    assert int(first.communicate(timeout=60)[0].split()[0]) != first.pid


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not Path("/proc/self/numa_maps").exists(),
    reason="the number of the system call is that of x86_64, and needs a kernel with NUMA",
)
def test_a_rank_whose_memory_is_bound_to_a_node_imports_for_itself(
    make_step: Callable[..., Step],
) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    set_mempolicy, bind, node_0 = 238, 2, ctypes.c_ulong(1)

    def bind_memory() -> None:
        if libc.syscall(set_mempolicy, bind, ctypes.byref(node_0), 64) != 0:
            os._exit(77)

    step = make_step(TELLS)
    second, first = step.start(1, 2, preexec_fn=bind_memory), step.start(0, 2)
    printed = second.communicate(timeout=60)[0]
    if second.returncode == 77:
        pytest.skip("this process may not bind its memory")
    pid, _, said = printed.split(maxsplit=2)
    assert int(pid) == second.pid
    assert said.startswith("the launcher gives ranks another memory policy: bind:0 in place of")
    assert int(first.communicate(timeout=60)[0].split()[0]) != first.pid


@pytest.mark.parametrize(
    ("variable", "value", "is_forked"),
    [
        ("OMP_PROC_BIND", "close", False),
        ("OMP_PLACES", "cores", False),
        ("OMP_PROC_BIND", "false", True),
        ("KMP_AFFINITY", "disabled", True),
    ],
)
def test_threads_that_are_bound_during_the_import_are_a_reason_not_to_fork(
    variable: str, value: str, is_forked: bool, tmp_path: Path
) -> None:
    step = Step(tmp_path, TELLS, **{variable: value})
    assert (step.argv != step.program.plain) is is_forked
    reasons = step.servers.take_reasons()
    assert [f"{variable}={value} binds threads" in reason for reason in reasons] == [True] * (
        not is_forked
    )


@pytest.mark.parametrize(
    ("tasks", "node", "size"),
    [("2", 0, 2), ("2(x2),3", 1, 2), ("2(x2),3", 2, 3), ("1,4(x3),2", 4, 2)],
)
def test_the_place_of_a_task_is_read_from_the_step(tasks: str, node: int, size: int) -> None:
    step = {"SLURM_LOCALID": "1", "SLURM_NODEID": str(node), "SLURM_STEP_TASKS_PER_NODE": tasks}
    assert place_on_node(step) == (1, size)
    of_hydra = {"MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "5"}
    assert place_on_node({**step, **of_hydra}) == (3, 5)


def test_a_node_beyond_those_of_the_step_is_an_error() -> None:
    step = {"SLURM_LOCALID": "0", "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    with pytest.raises(ValueError, match="SLURM_STEP_TASKS_PER_NODE"):
        place_on_node(step)


def test_ranks_that_have_a_node_each_need_no_server() -> None:
    servers = StepForkServers(["json"], own_places=("/home/me",))
    command = ["python", "-m", "rank"]
    argv = servers.command(command, {"OMP_PROC_BIND": "close"}, are_alone=True)
    assert argv == [*command, '--import-first={"modules":["json"],"own_places":["/home/me"]}']
    assert servers.take_reasons() == []


@pytest.mark.parametrize("is_on_node", [True, False])
def test_clients_are_run_by_the_python_of_the_nodes_where_it_is_known(
    is_on_node: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    if is_on_node:
        monkeypatch.setenv("SLURMD_NODENAME", "node1")
    servers, command = StepForkServers(["json"], own_places=()), ["/env/python", "-m", "rank"]

    def client() -> str:
        argv = servers.command(command, {})
        assert argv[-len(command) :] == command
        assert bool(client_variables(argv)) is (argv[0] != command[0])
        return argv[0]

    assert client() == (system_python() if is_on_node and system_python() else "/env/python")
    # One that is packed has an interpreter beside it.
    assert servers.command(command, {}, client="/dev/shm/client.py")[0] == "/env/python"
    servers.note_failed_start()
    assert client() == "/env/python"


@pytest.mark.parametrize(
    ("kind", "pmi", "is_tried"),
    [
        ("srun", "pmi2", True),
        ("srun", "pmix_v4", True),
        ("srun", "cray_shasta", False),
        ("hydra", None, True),
        ("openmpi", None, False),
    ],
)
def test_only_launchers_that_were_tried_fork(kind: str, pmi: str | None, is_tried: bool) -> None:
    servers = StepForkServers(["json"], own_places=())
    assert servers.tries(StepLauncher(program=kind, kind=kind, pmi=pmi)) is is_tried
