"""The fork server with real processes, without MPI."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpctrain import environ
from hpctrain.execute.fork_server import ForkServers
from hpctrain.execute.offered_fork_server import OfferedForkServer, ask_end
from hpctrain.worker import launched
from tests.waiting import wait_until
from tests.worker.programs import STATE, WAITS, Program, is_alive


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    return {**environ.without_launcher_variables(os.environ), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def make_servers(tmp_path: Path, variables: dict[str, str]) -> Iterator[Callable[..., ForkServers]]:
    made: list[ForkServers] = []

    def make(
        *modules: str,
        own_places: tuple[str, ...] = (),
        further: Mapping[str, str] | None = None,
        may_have: tuple[str, ...] = (),
        dispensable: tuple[str, ...] = (),
    ) -> ForkServers:
        servers = ForkServers(
            modules or ("json", "tempfile"),
            own_places=own_places,
            environment={**variables, **(further or {})},
            further=may_have,
            dispensable=dispensable,
        )
        servers.may_restart, servers.settle_s = True, 0.0
        made.append(servers)
        return servers

    yield make
    for servers in made:
        servers.close()


def test_a_forked_rank_is_in_the_state_that_the_launcher_made(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, STATE)
    servers = make_servers()
    forked = servers.command(program.plain, variables)
    assert forked != program.plain

    def change() -> None:
        os.umask(0o027)
        os.nice(3)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        Path("/proc/self/oom_score_adj").write_text("123")

    for preparation in (None, change):
        options: Any = {
            "env": {**variables, "CUDA_VISIBLE_DEVICES": "3", "PMI_RANK": "7", "SLURM_PROCID": "7"},
            "preexec_fn": preparation,
            "start_new_session": True,
        }
        plain, ours = (program.run(argv, **options) for argv in (program.plain, forked))
        assert (plain.returncode, ours.returncode) == (0, 0), ours.stderr
        (state, pid), (expected, _) = ours.stdout.splitlines(), plain.stdout.splitlines()
        assert int(pid) != ours.args[0]
        assert json.loads(state) == json.loads(expected)
    assert servers.take_reasons() == []


@pytest.mark.parametrize(
    "end",
    [
        "raise SystemExit(0)",
        "raise SystemExit(3)",
        "raise SystemExit('said')",
        "raise ValueError('wrong')",
        "os._exit(7)",
        "os.kill(os.getpid(), 9)",
        "os.kill(os.getpid(), 15)",
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    ],
)
def test_a_client_ends_as_its_rank_does(
    end: str, tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, f"import os\nprint(os.getpid(), flush=True)\n{end}\n")
    servers = make_servers()
    plain = program.run(program.plain)
    ours = program.run(servers.command(program.plain, variables))
    assert ours.returncode == plain.returncode
    assert int(plain.stdout) == plain.args[0]
    assert int(ours.stdout) != ours.args[0]
    # A traceback has frames of its own below that of the program.
    assert ours.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]
    assert servers.take_reasons() == []


@pytest.mark.parametrize(
    ("end", "expected"),
    [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getpid(), 15)", -15)],
)
@pytest.mark.parametrize("is_offered", [False, True])
def test_a_server_says_how_a_rank_has_ended(
    is_offered: bool,
    end: str,
    expected: int,
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
) -> None:
    source = f"import os\nprint(os.getpid(), flush=True)\ninput()\n{end}\n"
    program, servers = Program(tmp_path, variables, source), make_servers()
    executor = OfferedForkServer(servers.offer(variables)) if is_offered else servers
    client = program.start(executor.command(program.plain, variables), stdin=subprocess.PIPE)
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    name = servers.offer(variables)
    assert ask_end(name, program.plain, pid, timeout_s=0.05) is None, "it is alive"
    assert executor.await_end(client.pid) is None, "it is no rank"
    with ThreadPoolExecutor(1) as beside:
        # It is asked while the rank lives, and after its end.
        found = beside.submit(executor.await_end, pid)
        client.communicate("\n", timeout=60)
        for status in (found.result(60), executor.await_end(pid)):
            assert status is not None
            assert os.waitstatus_to_exitcode(status) == expected
    assert client.returncode == expected


def test_how_a_rank_ended_is_not_taken_for_the_end_of_another_with_its_number(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, "import os; print(os.getpid()); os._exit(7)")
    servers = make_servers()
    first, second = (OfferedForkServer(servers.offer(variables)) for _ in range(2))
    pid = int(program.run(first.command(program.plain, variables)).stdout)
    # A rank of another run, which is not forked, may get the number again.
    second.command([*program.plain, "of another run"], variables)
    assert second.await_end(pid) is None
    assert first.await_end(pid) == 7 << 8


def test_a_process_without_an_io_priority_is_like_another_one() -> None:
    """Kernels before 5.17 give it the level 4 or 0, whichever disks it has read."""
    assert launched._describe_io_priority(0) == launched._describe_io_priority(4)
    assert launched._describe_io_priority(3 << 13) != launched._describe_io_priority(2 << 13 | 4)


def test_how_a_rank_ended_is_not_known_if_its_client_was_killed_first(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program, servers = Program(tmp_path, variables, WAITS), make_servers()
    client = program.start(servers.command(program.plain, variables), stdin=subprocess.PIPE)
    assert client.stdout is not None
    pid = int(client.stdout.readline().split()[0])
    client.kill()
    client.wait(timeout=60)
    # Its input is open: it does not end by itself.
    assert servers.await_end(pid) is None
    assert not is_alive(pid)
    client.communicate(timeout=60)


def test_signals_for_the_client_reach_the_rank_and_eof_of_its_input_too(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, WAITS)
    client = program.start(make_servers().command(program.plain, variables), stdin=subprocess.PIPE)
    assert client.stdout is not None
    pid = int(client.stdout.readline().split()[0])
    assert pid != client.pid
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGCONT):
        client.send_signal(number)
        assert client.stdout.readline().strip() == number.name
    client.communicate(timeout=60)
    assert client.returncode == 4


def test_a_rank_whose_client_is_killed_ends_with_what_it_has_started(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, WAITS)
    servers = make_servers()
    client = program.start(servers.command(program.plain, variables), stdin=subprocess.PIPE)
    assert client.stdout is not None
    pids = [int(word) for word in client.stdout.readline().split()]
    client.kill()
    client.communicate(timeout=60)
    wait_until(lambda: not any(map(is_alive, pids)), "the rank outlives its client")
    assert servers.await_idle()


def test_ranks_outlive_a_killed_server_and_the_next_ones_have_another(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, WAITS)
    servers = make_servers()
    client = program.start(servers.command(program.plain, variables), stdin=subprocess.PIPE)
    assert client.stdout is not None
    pid = int(client.stdout.readline().split()[0])
    first = servers.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_alive(first))
    client.send_signal(signal.SIGUSR1)
    assert client.stdout.readline().strip() == "SIGUSR1"
    assert is_alive(pid)
    _, errors = client.communicate(timeout=60)
    assert client.returncode == 1
    assert "how this rank ended is unknown" in errors
    again = program.start(servers.command(program.plain, variables), stdin=subprocess.PIPE)
    again.communicate(timeout=60)
    assert again.returncode == 4
    assert servers.pid not in (None, first)
    assert servers.take_reasons() == []


def test_a_rank_that_is_not_connected_ends_with_its_server(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, WAITS)
    servers = make_servers()
    command = servers.command([*program.plain, "unconnected"], variables)
    client = program.start(command, stdin=subprocess.PIPE)
    assert client.stdout is not None
    pid, other = map(int, client.stdout.readline().split())
    try:
        assert servers.pid is not None
        os.kill(servers.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), "the rank waits for an executor that is gone")
    finally:
        os.kill(other, signal.SIGKILL)
        client.communicate(timeout=60)


OWNER = """
    import os, sys, time
    from hpctrain.execute.fork_server import ForkServers

    modules = ["sleeper"] if {sleeps} else ["json"]
    servers = ForkServers(modules, own_places=[], environment=dict(os.environ))
    servers.start()
    print(servers.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_server_does_not_outlive_its_owner(
    sleeps: bool, tmp_path: Path, variables: dict[str, str]
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "sleeper.py").write_text("open('begun', 'w').close()\nimport time; time.sleep(60)")
    path = os.pathsep.join(filter(None, [str(packages), variables.get("PYTHONPATH")]))
    program = Program(tmp_path, {**variables, "PYTHONPATH": path}, OWNER.format(sleeps=sleeps))
    owner = program.start(program.plain)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    if sleeps:
        wait_until(lambda: (tmp_path / "begun").exists())
    owner.kill()
    owner.communicate(timeout=60)
    wait_until(lambda: not is_alive(pid), "the server outlives its owner")


UNUSABLE = {
    "thread": (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "the import of library starts a thread",
    ),
    "mpi": ("from mpi4py import MPI", "the import of library loads MPI"),
    "fails": ("import missing_library", "the import of library fails: ModuleNotFoundError"),
    "ends": (
        "import os; os.write(2, b'no licence'); os._exit(5)",
        "ended while it imported: no lice",
    ),
}


@pytest.mark.parametrize("which", UNUSABLE)
def test_a_module_that_cannot_be_imported_before_a_fork_is_named(
    which: str,
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
) -> None:
    source, reason = UNUSABLE[which]
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(source)
    path = os.pathsep.join(filter(None, [str(packages), variables.get("PYTHONPATH")]))
    variables["PYTHONPATH"] = path
    program = Program(tmp_path, variables, "print('ran')")
    servers = make_servers("json", "library")
    servers.start()
    # It is refused as long as the server imports, and after it has ended.
    assert program.run(servers.command(program.plain, variables)).stdout == "ran\n"
    (said,) = wait_until(servers.take_reasons)
    assert reason in said
    assert servers.command(program.plain, variables) == program.plain
    assert servers.take_reasons() == []


def test_a_file_of_the_user_with_the_name_of_an_imported_module_wins(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, "import wave; print(wave.__doc__)")
    (tmp_path / "wave.py").write_text('"""Mine."""')
    servers = make_servers("wave", own_places=(str(tmp_path),))
    assert program.run(servers.command(program.plain, variables)).stdout == "Mine.\n"
    (reason,) = wait_until(servers.take_reasons)
    assert f"{tmp_path}/wave.py of yours has the name of a module" in reason


def test_modules_of_the_user_are_left_to_the_ranks(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    (tmp_path / "of_mine.py").write_text("import os; print('imported by', os.getpid())")
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(tmp_path), variables.get("PYTHONPATH")])
    )
    program = Program(tmp_path, variables, "import of_mine, os; print('ran by', os.getpid())")
    done = program.run(make_servers("of_mine").command(program.plain, variables))
    imported, ran = (line.split()[-1] for line in done.stdout.splitlines())
    assert imported == ran


@pytest.mark.parametrize("is_hook", [False, True])
def test_a_sitecustomize_without_a_hook_is_a_reason_not_to_fork(
    is_hook: bool,
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
) -> None:
    hook = "def after_rank_fork():\n    print('hook', sys.orig_argv[2])\n" if is_hook else ""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{hook}")
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(tmp_path), variables.get("PYTHONPATH")])
    )
    program = Program(tmp_path, variables, "print('ran')")
    servers = make_servers()
    done = program.run(servers.command(program.plain, variables))
    assert done.stdout == ("hook program\nran\n" if is_hook else "ran\n")
    reasons = servers.take_reasons() if is_hook else wait_until(servers.take_reasons)
    assert ["after_rank_fork" in reason for reason in reasons] == ([] if is_hook else [True])


def test_what_the_launcher_changes_too_far_is_a_reason_and_the_rank_starts_all_the_same(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, "import os; print(os.environ['OMP_NUM_THREADS'])")
    servers = make_servers()
    argv = servers.command(program.plain, variables)
    done = program.run(argv, env={**variables, "OMP_NUM_THREADS": "2"})
    assert done.stdout == "2\n"
    (reason,) = wait_until(servers.take_reasons)
    assert "variables that libraries read when they are imported: OMP_NUM_THREADS" in reason
    closed = program.run(argv, preexec_fn=lambda: os.close(0))
    assert closed.stdout == "1\n"
    (reason,) = wait_until(servers.take_reasons)
    assert "has closed standard streams" in reason
    other = [*argv[:-5], "/nowhere/python", *argv[-4:]]
    with pytest.raises(subprocess.SubprocessError):
        program.run(["false"]).check_returncode()
    assert program.run(other).returncode == 1
    (reason,) = wait_until(servers.take_reasons)
    assert "ranks run /nowhere/python" in reason


@pytest.mark.parametrize(
    ("wrapper", "what"),
    [
        ("chrt --batch 0", "scheduling policy: 3, priority 0 in place of 0, priority 0"),
        ("ionice --class 3", "I/O priority: 3, "),
        (f"setarch {os.uname().machine} -R", "personality: 00040000 in place of 00000000"),
    ],
)
def test_how_a_wrapper_lets_ranks_be_scheduled_is_a_reason_not_to_fork(
    wrapper: str,
    what: str,
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
) -> None:
    program, servers = Program(tmp_path, variables, "import os; print(os.getpid())"), make_servers()
    done = program.run([*wrapper.split(), *servers.command(program.plain, variables)])
    assert int(done.stdout) == done.args[0]
    (reason,) = wait_until(servers.take_reasons)
    assert reason.startswith(f"the launcher gives ranks another {what}")


def test_another_environment_of_fit_is_another_server(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, "import os; print(os.environ.get('OF_MINE'))")
    servers = make_servers()
    assert program.run(servers.command(program.plain, variables)).stdout == "None\n"
    first, changed = servers.pid, {**variables, "OF_MINE": "1"}
    done = program.run(servers.command(program.plain, changed), env=changed)
    assert done.stdout == "1\n"
    assert servers.pid not in (None, first)
    assert servers.take_reasons() == []


def test_a_package_that_is_installed_meanwhile_is_another_server(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text("version = 1")
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(packages), variables.get("PYTHONPATH")])
    )
    program = Program(tmp_path, variables, "import library; print(library.version)")
    servers = make_servers("library")
    assert program.run(servers.command(program.plain, variables)).stdout == "1\n"
    first = servers.pid
    assert program.run(servers.command(program.plain, variables)).stdout == "1\n"
    assert servers.pid == first
    (packages / "library.py").write_text("version = 2  # longer")
    os.utime(packages / "library.py", ns=(1, 1))
    assert program.run(servers.command(program.plain, variables)).stdout == "2\n"
    assert servers.pid not in (None, first)


def test_forked_ranks_have_random_numbers_of_their_own(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    source = """
        import multiprocessing, random, numpy
        print(numpy.random.random(), random.random(), multiprocessing.current_process().authkey)
    """
    program = Program(tmp_path, variables, source)
    servers = make_servers("numpy", "random", "multiprocessing.process")
    argv = servers.command(program.plain, variables)
    drawn = [program.run(argv).stdout.split(maxsplit=2) for _ in range(3)]
    assert servers.take_reasons() == []
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 3


def test_what_imports_print_is_printed_by_each_rank(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(
        "import os, sys\nos.environ['SET_BY_IMPORT'] = '1'\n"
        "print('on output')\nprint('a warning', file=sys.stderr)"
    )
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(packages), variables.get("PYTHONPATH")])
    )
    program = Program(tmp_path, variables, "import library, os; print(os.environ['SET_BY_IMPORT'])")
    argv = make_servers("library").command(program.plain, variables)
    for _ in range(2):
        done = program.run(argv)
        assert (done.stdout, done.stderr) == ("on output\n1\n", "a warning\n")


def test_64_starts_leave_a_server_as_it_was(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, "print('ran')")
    servers = make_servers()
    argv = servers.command(program.plain, variables)

    def look() -> tuple[int, str, int]:
        proc = Path(f"/proc/{servers.pid}")
        memory = int((proc / "statm").read_text().split()[1])
        return (
            len(list((proc / "fd").iterdir())),
            (proc / f"task/{servers.pid}/children").read_text(),
            memory,
        )

    for _ in range(4):
        program.run(argv)
    assert servers.await_idle()
    descriptors, children, pages = look()
    for _ in range(16):
        clients = [program.start(argv) for _ in range(4)]
        assert [client.communicate(timeout=60)[0] for client in clients] == ["ran\n"] * 4
    assert servers.await_idle()
    again = look()
    assert again[:2] == (descriptors, children)
    assert again[2] < pages + 128


@pytest.fixture
def library(tmp_path: Path, variables: dict[str, str]) -> Callable[[str], None]:
    """Return what installs a package ``library``."""

    def install(source: str) -> None:
        packages = tmp_path / "site-packages"
        packages.mkdir()
        (packages / "library.py").write_text(textwrap.dedent(source))
        variables["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(packages), variables.get("PYTHONPATH")])
        )

    return install


LOOKS = "import sys; print('wave' in sys.modules, 'library' in sys.modules)"


def test_a_restart_has_what_ranks_have_imported(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program = Program(tmp_path, variables, f"{LOOKS}\nsys.stdin.read()")
    servers = make_servers(may_have=("wave", "library"))
    options = {"stdin": subprocess.PIPE}
    waits = program.start(servers.command(program.plain, variables), **options)
    assert waits.stdout is not None
    assert waits.stdout.readline() == "False False\n"
    first = servers.pid
    assert first is not None
    servers.prepare_restart({"wave", "unheard_of"})
    assert servers.is_preparing
    # Where a rank is started meanwhile, the first server forks it.
    early = program.start(servers.command(program.plain, variables), **options)
    assert early.communicate(timeout=60)[0] == "False False\n"
    assert servers.pid == first
    wait_until(lambda: not servers.is_preparing)
    done = program.run(servers.command(program.plain, variables))
    assert (done.stdout, done.stderr) == ("True False\n", "")
    assert servers.pid not in (None, first)
    # What it knows already starts no other one.
    servers.prepare_restart({"wave"})
    assert not servers.is_preparing
    # Ranks of the first one go on, and it ends with them.
    assert waits.poll() is None
    waits.communicate(timeout=60)
    assert waits.returncode == 0
    wait_until(lambda: not is_alive(first), "the first server outlives its ranks")
    assert servers.take_reasons() == []


@pytest.mark.parametrize("which", UNUSABLE)
def test_what_cannot_be_imported_for_a_restart_changes_nothing(
    which: str,
    tmp_path: Path,
    variables: dict[str, str],
    library: Callable[[str], None],
    make_servers: Callable[..., ForkServers],
) -> None:
    library(UNUSABLE[which][0])
    program = Program(tmp_path, variables, LOOKS)
    servers = make_servers(may_have=("library",))
    assert program.run(servers.command(program.plain, variables)).stdout == "False False\n"
    first = servers.pid
    servers.prepare_restart({"library"})
    wait_until(lambda: not servers.is_preparing)
    assert program.run(servers.command(program.plain, variables)).stdout == "False False\n"
    assert servers.pid == first
    # Nor is it tried again.
    servers.prepare_restart({"library"})
    assert not servers.is_preparing
    (reason,) = servers.take_reasons()
    assert reason.startswith("the fork server leaves out library: ")
    assert UNUSABLE[which][1] in reason


def test_nothing_is_prepared_for_a_run_that_does_not_restart(
    make_servers: Callable[..., ForkServers],
) -> None:
    servers = make_servers(may_have=("wave",))
    servers.may_restart = False
    servers.prepare_restart({"wave"})
    assert not servers.is_preparing


IMPORTS_SLOWLY = """
    import os, time

    version = 1
    open("{folder}/begun", "w").close()
    while not os.path.exists("{folder}/go"):
        time.sleep(0.01)
"""


def _upgrade(folder: Path) -> None:
    """Install another version of ``library``, whose file has a time that says nothing."""
    (folder / "site-packages/library.py").write_text("version = 2  # longer")
    os.utime(folder / "site-packages/library.py", ns=(1, 1))


def test_a_package_that_is_installed_after_the_first_offer_is_another_server(
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
    library: Callable[[str], None],
) -> None:
    library("version = 1")
    program = Program(tmp_path, variables, "import library; print(library.version)")
    servers = make_servers("library")

    def run_next_trial() -> str:
        executor = OfferedForkServer(servers.offer(variables))
        return program.run(executor.command(program.plain, variables)).stdout

    assert run_next_trial() == "1\n"
    # What owns the server hears nothing of it between the offers.
    _upgrade(tmp_path)
    assert run_next_trial() == "2\n"
    assert servers.take_reasons() == []


def test_a_package_that_is_installed_during_the_imports_is_another_server(
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
    library: Callable[[str], None],
) -> None:
    library(IMPORTS_SLOWLY.format(folder=tmp_path))
    (tmp_path / "site-packages/__pycache__").mkdir()
    source = "import library, os; print(library.version, os.getppid())"
    program = Program(tmp_path, variables, source)
    servers = make_servers("library")
    servers.start()
    first = servers.pid
    wait_until((tmp_path / "begun").exists)
    _upgrade(tmp_path)
    (tmp_path / "site-packages/library-2.dist-info").mkdir()
    (tmp_path / "go").touch()
    executor = OfferedForkServer(servers.offer(variables))
    early = program.run(executor.command(program.plain, variables))
    assert early.stdout == f"1 {first}\n", "the install was not there when the import began"
    later = program.run(servers.command(program.plain, variables))
    assert later.stdout == f"2 {servers.pid}\n"
    assert servers.take_reasons() == []


def test_a_package_that_is_installed_while_a_restart_is_prepared_is_another_server(
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
    library: Callable[[str], None],
) -> None:
    library(IMPORTS_SLOWLY.format(folder=tmp_path))
    (tmp_path / "site-packages/__pycache__").mkdir()
    program = Program(tmp_path, variables, "import library; print(library.version)")
    servers = make_servers(may_have=("library",))
    servers.command(program.plain, variables)
    first = servers.pid
    servers.prepare_restart({"library"})
    wait_until((tmp_path / "begun").exists)
    _upgrade(tmp_path)
    (tmp_path / "site-packages/library-2.dist-info").mkdir()
    (tmp_path / "go").touch()

    def command_of_another() -> list[str]:
        command = servers.command(program.plain, variables)
        return [] if servers.pid == first else command

    argv = wait_until(command_of_another)
    assert program.run(argv).stdout == "2\n"
    assert servers.take_reasons() == []


def test_a_word_for_ranks_that_end_does_not_end_a_server_that_imports(
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
    library: Callable[[str], None],
) -> None:
    library(IMPORTS_SLOWLY.format(folder=tmp_path))
    program = Program(tmp_path, variables, "import library, os; print(os.getppid())")
    servers = make_servers("library")
    servers.start()
    first = servers.pid
    wait_until((tmp_path / "begun").exists)
    # As after a start that has failed, whose ranks are gone.
    assert servers.await_idle()
    (tmp_path / "go").touch()
    assert program.run(servers.command(program.plain, variables)).stdout == f"{first}\n"
    assert servers.take_reasons() == []


@pytest.mark.parametrize("which", UNUSABLE)
def test_what_makes_a_server_unusable_is_left_out_if_it_was_not_needed(
    which: str,
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
    library: Callable[[str], None],
) -> None:
    library(UNUSABLE[which][0])
    program = Program(tmp_path, variables, f"{LOOKS}\nimport os; print(os.getppid())")
    servers = make_servers("wave", "library", dispensable=("library",))

    def is_forked() -> str:
        """Run a rank; return what it prints if it is forked."""
        done = program.run(servers.command(program.plain, variables))
        printed, parent = done.stdout.splitlines()
        return printed if int(parent) == servers.pid else ""

    assert wait_until(is_forked) == "True False"
    (reason,) = servers.take_reasons()
    assert reason.startswith("the fork server leaves out library: ")
    assert UNUSABLE[which][1] in reason


def test_what_an_import_tidies_up_at_exit_is_there_until_the_last_rank_has_ended(
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
    library: Callable[[str], None],
) -> None:
    library("import tempfile\n\nscratch = tempfile.TemporaryDirectory()")
    program = Program(tmp_path, variables, "import library; print(library.scratch.name)")
    servers = make_servers("library")
    argv = servers.command(program.plain, variables)
    (name,) = {program.run(argv).stdout.strip() for _ in range(3)}
    assert servers.take_reasons() == []
    assert Path(name).is_dir()
    servers.close()
    assert not Path(name).exists()


def test_what_a_rank_itself_leaves_to_its_exit_is_done(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    source = "import tempfile\nscratch = tempfile.TemporaryDirectory()\nprint(scratch.name)"
    program = Program(tmp_path, variables, source)
    servers = make_servers()
    done = program.run(servers.command(program.plain, variables))
    assert servers.take_reasons() == []
    assert done.stdout
    assert not Path(done.stdout.strip()).exists()


def test_a_thread_that_starts_after_the_imports_is_a_reason_not_to_fork(
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
    library: Callable[[str], None],
) -> None:
    # As some libraries start their threads again in the parent of a fork.
    library(
        """
        import os, threading

        def start():
            threading.Thread(target=threading.Event().wait, daemon=True).start()

        os.register_at_fork(after_in_parent=start)
        """
    )
    program = Program(tmp_path, variables, "import os; print(os.getpid())")
    servers = make_servers("library")
    argv = servers.command(program.plain, variables)
    done = [program.run(argv) for _ in range(3)]
    assert [int(d.stdout) == d.args[0] for d in done] == [False, True, True]
    (reason,) = wait_until(servers.take_reasons)
    assert reason.startswith("a thread has started in the fork server (")


def test_a_server_that_grows_has_a_successor(
    tmp_path: Path,
    variables: dict[str, str],
    make_servers: Callable[..., ForkServers],
    library: Callable[[str], None],
) -> None:
    library(
        """
        import os
        hoard = []
        os.register_at_fork(after_in_parent=lambda: hoard.append(b"x" * (200 << 20)))
        """
    )
    program = Program(tmp_path, variables, "import library; print(len(library.hoard))")
    servers = make_servers("library")
    pids = set()
    for _ in range(3):
        assert program.run(servers.command(program.plain, variables)).stdout == "0\n"
        pids.add(servers.pid)
        assert servers.await_idle()
    assert len(pids) == 3
    assert servers.take_reasons() == []


def test_a_script_with_many_open_files_has_a_server_too(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    # select() takes no descriptor above 1023.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        program = Program(tmp_path, variables, STATE)
        servers = make_servers()
        assert program.run(servers.command(program.plain, variables)).returncode == 0
        assert servers.take_reasons() == []
        assert servers.await_idle()
        servers.close()
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_for_many_executors_tells_each_of_its_own_ranks(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program, servers = Program(tmp_path, variables, WAITS), make_servers()
    first, second = (OfferedForkServer(servers.offer(variables)) for _ in range(2))
    commands = [[*program.plain, str(number)] for number in range(2)]
    clients = [
        program.start(executor.command(command, variables), stdin=subprocess.PIPE)
        for executor, command in zip((first, second), commands, strict=True)
    ]
    pids = []
    for client in clients:
        assert client.stdout is not None
        pids.append(int(client.stdout.readline().split()[0]))
    assert pids[0] != clients[0].pid
    assert not first.await_idle(0.05)
    clients[0].kill()
    clients[0].communicate(timeout=60)
    assert first.await_idle()
    assert not is_alive(pids[0])
    assert not second.await_idle(0.05)
    clients[1].communicate(timeout=60)
    assert clients[1].returncode == 4
    assert second.await_idle()
    assert servers.take_reasons() == []


def test_once_an_offered_server_is_gone_ranks_start_as_without_one(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program, servers = Program(tmp_path, variables, WAITS), make_servers()
    executor = OfferedForkServer(servers.offer(variables))
    argv = executor.command(program.plain, variables)
    servers.close()
    client = program.start(argv, stdin=subprocess.PIPE)
    assert client.stdout is not None
    assert int(client.stdout.readline().split()[0]) == client.pid
    client.communicate(timeout=60)
    assert client.returncode == 4
    assert not executor.await_idle()


def test_a_server_that_is_closed_serves_its_ranks_to_their_end(
    tmp_path: Path, variables: dict[str, str], make_servers: Callable[..., ForkServers]
) -> None:
    program, servers = Program(tmp_path, variables, WAITS), make_servers()
    client = program.start(servers.command(program.plain, variables), stdin=subprocess.PIPE)
    assert client.stdout is not None
    rank, server = int(client.stdout.readline().split()[0]), servers.pid
    assert server is not None
    servers.close()
    assert is_alive(rank)
    client.communicate(timeout=60)
    # A killed server could not say how its rank has ended.
    assert client.returncode == 4
    wait_until(lambda: not is_alive(server), "the server outlives its last rank")
