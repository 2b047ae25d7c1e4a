"""Nodes that get a packed environment from one another: each is a process of the system's Python.

The shared file is a FIFO where a test says so: what is written into it once can be read once.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain import timeouts
from hpctrain.control.proof import AGENT, NONCE_BYTES, Credentials
from hpctrain.execute import pack_exchange
from hpctrain.execute.pack_exchange import PackExchange
from hpctrain.pack.header import EnvironmentPack
from hpctrain.pack.node_peer import TO_NODE
from hpctrain.plan.pack_tree import FANOUT, PackTree
from tests.pack.tiny import write_tiny_pack
from tests.processes import REFUSED_BY_FIPS
from tests.waiting import wait_until

PYTHON = "/usr/bin/python3"
TIMEOUT_S = 60
# A node that gives the file to the first that asks, and a wrong one to all later ones.
WRONG = """
_right = Peer._send_file
def _send(self, receiver):
    if not hasattr(self, "asked"):
        self.asked = True
        return _right(self, receiver)
    content = bytearray(os.pread(self._file, self._offer["total"], 0))
    content[1000] ^= 1
    receiver.settimeout(None)
    receiver.sendall(content)
Peer._send_file = _send
"""
ALWAYS_WRONG = WRONG.replace('not hasattr(self, "asked")', "False")
# The same, but later ones get a half.
HALF = WRONG.replace(
    """    content = bytearray(os.pread(self._file, self._offer["total"], 0))
    content[1000] ^= 1
    receiver.settimeout(None)
    receiver.sendall(content)
""",
    """    receiver.settimeout(None)
    receiver.sendall(os.pread(self._file, self._offer["total"] // 2, 0))
    open(self._copy + ".half", "w").close()
    time.sleep(600)
""",
)
ALWAYS_HALF = HALF.replace('not hasattr(self, "asked")', "False")
IMPATIENT = """
_main = main
def main(offer):
    _main({**offer, "silence_s": 0.3})
"""
STUCK = """
Peer._read_shared = lambda self: time.sleep(600)
"""

SLOW = """
def _read(self):
    while True:
        self._send()
        time.sleep(0.1)
Peer._read_shared = _read
"""


class Node:
    """What one node runs."""

    def __init__(
        self,
        exchange: PackExchange,
        folder: Path,
        name: str,
        *,
        patch: str = "",
        python: str = PYTHON,
    ) -> None:
        self.copy = folder / f"{name}.copy"
        text, call = exchange.program.decode().rsplit("\n\nmain(", 1)
        self.process = subprocess.Popen(
            [python, "-I", "-S", "-", str(self.copy), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n{patch}\n\nmain({call}")
        self.process.stdin.close()
        self.process.stdin = None
        self.printed = self.why = ""

    def end(self) -> int:
        """Return its status once it has the file, or has given up."""
        self.printed, self.why = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode

    def has(self, pack: EnvironmentPack) -> bool:
        """Return whether its copy has the digest."""
        content = self.copy.read_bytes()
        is_whole = len(content) == pack.total_bytes
        return is_whole and hashlib.sha256(content[: pack.size]).hexdigest() == pack.sha256

    def kill(self) -> None:
        """End it, also what it has left in the background."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class RecordingTree(PackTree):
    """Keeps who was to get the file from whom."""

    sources: list[tuple[int, int | None]]

    def assign(self, *, is_late: bool = False) -> list[tuple[int, int | None]]:
        found = super().assign(is_late=is_late)
        self.sources = [*getattr(self, "sources", []), *found]
        return found


@pytest.fixture
def pack(tmp_path: Path) -> EnvironmentPack:
    return write_tiny_pack(tmp_path / "e.tar", starter="exit 0\n#" + secrets.token_hex(2**20))


@pytest.fixture
def read_once(pack: EnvironmentPack, tmp_path: Path) -> Iterator[EnvironmentPack]:
    """Return a pack whose file can be read once."""
    path, content = tmp_path / "fifo", Path(pack.path).read_bytes()
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(content,), daemon=True)
    writer.start()
    yield replace(pack, path=str(path))
    if writer.is_alive():
        # No test of it has read.
        os.close(os.open(path, os.O_RDONLY))
    writer.join(TIMEOUT_S)


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PackExchange]]:
    begun = []
    monkeypatch.setattr(pack_exchange, "PackTree", RecordingTree)

    def begin(pack: EnvironmentPack, *, num_nodes: int = 4) -> PackExchange:
        begun.append(PackExchange(pack, num_nodes=num_nodes))
        return begun[-1]

    yield begin
    for exchange in begun:
        exchange.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def begin(exchange: PackExchange, **options: str) -> Node:
        nodes.append(Node(exchange, tmp_path, f"n{len(nodes)}", **options))
        return nodes[-1]

    yield begin
    for node in nodes:
        node.kill()
        node.process.wait()
        for stream in (node.process.stdout, node.process.stderr):
            if stream is not None:
                stream.close()


def is_gone(node: Node) -> bool:
    """Return whether no process of a node runs. One that has ended may not be reaped yet."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = file.read_text().rpartition(")")[2].split()[:3]
            if int(group) == node.process.pid and state not in "ZX":
                return False
    return True


def sources_of(exchange: PackExchange) -> list[tuple[int, int | None]]:
    tree = exchange._tree
    assert isinstance(tree, RecordingTree)
    return tree.sources


def test_forty_nodes_have_it_after_one_reading_and_none_gives_it_to_more_than_three(
    read_once: EnvironmentPack,
    exchanges: Callable[..., PackExchange],
    start: Callable[..., Node],
) -> None:
    exchange = exchanges(read_once, num_nodes=40)
    nodes = [start(exchange) for _ in range(40)]
    assert [node.end() for node in nodes] == [0] * 40
    assert all(node.has(read_once) for node in nodes)
    reads = [node.printed for node in nodes if node.printed]
    assert len(reads) == 1
    assert reads[0].endswith(f" reads the shared file: {read_once.path}\n")
    wait_until(lambda: exchange.num_given == 39, "all have said so")
    sources = [source for _, source in sources_of(exchange)]
    assert sources.count(None) == 1
    # A tree, and no star.
    assert len(set(sources)) > 4
    # They wait to give it to others until that is over.
    assert not any(is_gone(node) for node in nodes)
    exchange.close()
    wait_until(lambda: all(is_gone(node) for node in nodes), "none of them is left")


@pytest.mark.parametrize(
    ("patch", "why"),
    [(HALF, " ended after "), (WRONG, " has another digest")],
    ids=["killed in the middle", "wrong"],
)
def test_a_node_that_gets_no_good_file_from_one_gets_it_from_another(
    read_once: EnvironmentPack,
    exchanges: Callable[..., PackExchange],
    start: Callable[..., Node],
    patch: str,
    why: str,
) -> None:
    exchange = exchanges(read_once)
    first = start(exchange, patch=patch)
    assert first.end() == 0
    assert start(exchange).end() == 0
    third = start(exchange)
    if patch == HALF:
        half = first.copy.with_name(f"{first.copy.name}.half")
        wait_until(half.exists, "a half was sent")
        first.kill()
    assert third.end() == 0
    assert third.has(read_once)
    (line,) = third.printed.splitlines()
    assert line.startswith("n2: ")
    assert why in line
    assert [source for _, source in sources_of(exchange)] == [None, 0, 0, 1]


def test_a_node_gives_it_to_few_at_a_time_however_many_agents_one_relays_for(
    pack: EnvironmentPack,
    exchanges: Callable[..., PackExchange],
    start: Callable[..., Node],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HPCTRAIN_HUB_FANOUT", "32")
    exchange = exchanges(pack, num_nodes=7)
    assert start(exchange, patch=ALWAYS_HALF).end() == 0
    for _ in range(6):
        start(exchange)
    wait_until(lambda: len(exchange._tree._waiting) == 6 - FANOUT, "the others wait")
    first, *others = sources_of(exchange)
    assert first == (0, None)
    # Nodes ask in any order.
    assert [source for _, source in others] == [0] * FANOUT
    assert len({node for node, _ in others} - {0}) == FANOUT


def test_a_python_in_fips_mode_gets_it_too(
    read_once: EnvironmentPack, exchanges: Callable[..., PackExchange], start: Callable[..., Node]
) -> None:
    exchange = exchanges(read_once)
    nodes = [start(exchange, patch=REFUSED_BY_FIPS) for _ in range(2)]
    assert [node.end() for node in nodes] == [0, 0]
    assert all(node.has(read_once) for node in nodes)


def test_one_that_sends_no_more_is_not_waited_for(
    read_once: EnvironmentPack,
    exchanges: Callable[..., PackExchange],
    start: Callable[..., Node],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeouts, "PACK_BYTES_S", 0.5)
    exchange = exchanges(read_once)
    assert start(exchange, patch=HALF).end() == 0
    assert start(exchange).end() == 0
    third = start(exchange)
    assert third.end() == 0
    assert third.has(read_once)
    assert third.printed.endswith(" has sent nothing for 0.5 s\n")


def test_where_no_other_node_has_a_good_one_the_shared_file_is_read_and_it_is_said(
    pack: EnvironmentPack, exchanges: Callable[..., PackExchange], start: Callable[..., Node]
) -> None:
    exchange = exchanges(pack)
    assert start(exchange, patch=ALWAYS_WRONG).end() == 0
    second = start(exchange)
    assert second.end() == 0
    assert second.has(pack)
    address = exchange._nodes[0].address
    why = f"what came from {address} has another digest"
    assert second.printed.splitlines() == [
        f"n1: {why}",
        f"hpctrain-pack n1 gets it from no other node: {why}",
        f"hpctrain-pack n1 reads the shared file: {pack.path}",
    ]


def test_nodes_that_wait_for_a_parent_that_is_killed_go_on(
    pack: EnvironmentPack, exchanges: Callable[..., PackExchange], start: Callable[..., Node]
) -> None:
    exchange = exchanges(pack, num_nodes=12)
    first = start(exchange, patch=ALWAYS_HALF)
    assert first.end() == 0
    others = [start(exchange) for _ in range(8)]
    half = first.copy.with_name(f"{first.copy.name}.half")
    wait_until(half.exists, "a half was sent")
    first.kill()
    assert [node.end() for node in others] == [0] * 8
    assert all(node.has(pack) for node in others)
    # One of all that are left reads.
    assert [source for _, source in sources_of(exchange)].count(None) == 2


def test_a_reader_that_is_killed_or_reads_no_more_is_replaced(
    pack: EnvironmentPack,
    exchanges: Callable[..., PackExchange],
    start: Callable[..., Node],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeouts, "PACK_WORD_S", 2.0)
    monkeypatch.setattr(pack_exchange, "_BEAT_INTERVAL_S", 0.1)
    exchange = exchanges(pack)
    killed = start(exchange, patch=STUCK)
    wait_until(lambda: exchange._tree.is_busy(0), "the first one is to read")
    stuck = start(exchange, patch=STUCK)
    wait_until(lambda: len(exchange._nodes) == 2, "the second one waits")
    third = start(exchange)
    killed.kill()
    assert third.end() == 0
    assert third.has(pack)
    assert not is_gone(stuck)
    assert [source for _, source in sources_of(exchange)] == [None, None, None]


def test_beside_a_slow_reader_one_more_node_reads_after_a_while(
    pack: EnvironmentPack,
    exchanges: Callable[..., PackExchange],
    start: Callable[..., Node],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pack_exchange, "_BEAT_INTERVAL_S", 0.1)
    exchange = exchanges(pack)
    slow = start(exchange, patch=SLOW)
    wait_until(lambda: exchange._tree.is_busy(0), "the first one reads")
    others = [start(exchange) for _ in range(2)]
    wait_until(lambda: len(exchange._tree._waiting) == 2, "the others wait")
    monkeypatch.setattr(timeouts, "PACK_READ_S", 0.0)
    assert [node.end() for node in others] == [0, 0]
    assert all(node.has(pack) for node in others)
    assert not is_gone(slow)
    assert exchange._tree.is_busy(0)


def test_without_its_executor_a_node_that_waits_ends_and_says_why(
    pack: EnvironmentPack, exchanges: Callable[..., PackExchange], start: Callable[..., Node]
) -> None:
    exchange = exchanges(pack)
    start(exchange, patch=STUCK)
    wait_until(lambda: exchange._tree.is_busy(0), "the first one is to read")
    second = start(exchange)
    wait_until(lambda: len(exchange._nodes) == 2, "the second one waits")
    exchange.close()
    assert second.end() == 1
    assert second.why == "the executor has closed the connection\n"
    late = start(exchange, patch=IMPATIENT)
    assert late.end() == 1
    assert late.why.startswith("cannot be reached: ")


def test_an_executor_that_says_nothing_is_not_waited_for(
    pack: EnvironmentPack,
    exchanges: Callable[..., PackExchange],
    start: Callable[..., Node],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pack_exchange, "_BEAT_INTERVAL_S", 600.0)
    exchange = exchanges(pack)
    start(exchange, patch=STUCK)
    wait_until(lambda: exchange._tree.is_busy(0), "the first one is to read")
    second = start(exchange, patch=IMPATIENT)
    assert second.end() == 1
    assert second.why == "the executor has sent nothing for 0.3 s\n"


def test_a_full_disk_is_said_and_nothing_stays_there(
    pack: EnvironmentPack, exchanges: Callable[..., PackExchange], tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if (done := subprocess.run(words, capture_output=True)).returncode != 0:
        pytest.skip(f"this user may not mount tmpfs: {done.stderr.decode()}")
    try:
        exchange = exchanges(pack)
        full, other = Node(exchange, folder, "full"), Node(exchange, tmp_path, "other")
        assert full.end() == 1
        assert full.why == "[Errno 28] No space left on device\n"
        assert os.listdir(folder) == []
        assert other.end() == 0
        assert other.has(pack)
        other.kill()
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_node_gives_nothing_to_who_does_not_know_the_secret(
    pack: EnvironmentPack, exchanges: Callable[..., PackExchange], start: Callable[..., Node]
) -> None:
    exchange = exchanges(pack)
    assert start(exchange).end() == 0
    host, _, port = exchange._nodes[0].address.rpartition(":")
    stranger = Credentials(secrets.token_bytes(32), run=f"pack {pack.sha256}", attempt=TO_NODE)
    with socket.create_connection((host, int(port)), TIMEOUT_S) as sock:
        nonce = os.urandom(NONCE_BYTES)
        theirs = sock.recv(NONCE_BYTES, socket.MSG_WAITALL)
        sock.sendall(nonce + stranger.prove(AGENT, theirs + nonce))
        with suppress(ConnectionResetError):
            assert sock.recv(1) == b""


def test_a_node_takes_nothing_from_an_executor_that_does_not_know_the_secret(
    pack: EnvironmentPack, exchanges: Callable[..., PackExchange], start: Callable[..., Node]
) -> None:
    other = exchanges(pack)
    listening = other._listener.getsockname()[1]
    exchange = exchanges(pack)
    own = str(exchange._listener.getsockname()[1])
    there = f"[each.replace(':{own}', ':{listening}') for each in offer['addresses']]"
    forged = IMPATIENT.replace("**offer,", f"**offer, 'addresses': {there},")
    node = start(exchange, patch=forged)
    assert node.end() == 1
    assert node.why.startswith("cannot be reached: ")
    assert other._nodes == {}


def test_garbage_ends_one_connection_alone(
    pack: EnvironmentPack, exchanges: Callable[..., PackExchange], start: Callable[..., Node]
) -> None:
    exchange = exchanges(pack)
    bad = start(exchange, patch='Peer._read_shared = lambda self: self._link.sendall(b"[1\\n")')
    assert bad.end() == 0
    good = start(exchange)
    assert good.end() == 0
    assert good.has(pack)


@pytest.mark.parametrize("minor", [6, 8, 12])
def test_what_nodes_run_is_for_old_and_new_pythons(
    minor: int,
    pack: EnvironmentPack,
    exchanges: Callable[..., PackExchange],
    start: Callable[..., Node],
) -> None:
    found = subprocess.run(
        ["sh", "-c", f"ls -d $HOME/.pyenv/versions/3.{minor}.*/bin/python"],
        capture_output=True,
        text=True,
    ).stdout.split()
    if not found:
        pytest.skip(f"there is no Python 3.{minor}")
    exchange = exchanges(pack)
    nodes = [start(exchange, python=found[0]), start(exchange, python=found[0])]
    assert [node.end() for node in nodes] == [0, 0]
    assert all(node.has(pack) for node in nodes)


def test_descriptors_of_a_large_job_are_allowed_while_it_lasts(
    pack: EnvironmentPack, exchanges: Callable[..., PackExchange]
) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1] if before[1] != resource.RLIM_INFINITY else 2**20
    if hard < 2000:
        pytest.skip(f"the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        exchange = exchanges(pack, num_nodes=1500)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1756
        exchange.close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
