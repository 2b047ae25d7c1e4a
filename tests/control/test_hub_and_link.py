from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpctrain.control import hub as hub_module
from hpctrain.control import local_socket
from hpctrain.control.hub import SECRET_BYTES, Hub
from hpctrain.control.link import Link, LinkTimeoutError, connect_tcp
from hpctrain.control.proof import AGENT, NONCE_BYTES, Credentials
from hpctrain.control.wire import Frame, encode_frame, join_frame
from hpctrain.timeouts import Timeout

PATIENCE_S = 10.0
CREDENTIALS = Credentials(b"s" * SECRET_BYTES, run="/runs/one", attempt=2)
Connect = Callable[..., Link]


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(attempt=2)
    yield hub
    hub.close()


@pytest.fixture
def socket_name() -> str:
    return local_socket.new_socket_name()


@pytest.fixture
def connect(hub: Hub, socket_name: str) -> Iterator[Connect]:
    """Connect ranks to the hub; the test must poll the hub before it looks for them."""
    hub.listen_locally(socket_name)
    links: list[Link] = []
    with ExitStack() as stack:

        def connect(
            rank: int, *, attempt: int = 2, on_lost: Callable[[], None] = lambda: None
        ) -> Link:
            sock = local_socket.connect(socket_name, timeout_s=PATIENCE_S)
            link = Link(sock, attempt=attempt, on_lost=on_lost)
            stack.callback(link.close, timeout_s=0.0)
            link.introduce(rank, {"pid": 100 + rank})
            links.append(link)
            return link

        yield connect


def await_frames(hub: Hub, count: int) -> list[Frame]:
    """Poll until so many frames have come."""
    frames: list[Frame] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(frames) < count:
        assert time.monotonic() < deadline, f"only {frames}"
        frames += hub.poll(0.05)
    return frames


def test_ranks_that_wait_are_counted_until_an_attempt_begins(
    hub: Hub, socket_name: str, connect: Connect
) -> None:
    sock = local_socket.connect(socket_name, timeout_s=PATIENCE_S)
    waiting = Link(sock, attempt=3, on_lost=lambda: None)
    waiting.post("waiting", b"sent", spare="ours")
    deadline = time.monotonic() + PATIENCE_S
    while not hub.waiting("ours"):
        assert time.monotonic() < deadline
        # Frames of another attempt are not for the caller.
        assert hub.poll(0.1) == []
    assert (hub.waiting("ours"), hub.waiting("others")) == ([b"sent"], [])
    hub.begin_attempt(3, spare="ours")
    assert hub.waiting("ours") == []
    waiting.close(timeout_s=0.0)


def said(frames: list[Frame]) -> list[tuple[str, int]]:
    return [(frame.op, frame.header["rank"]) for frame in frames]


def poll_until(hub: Hub, condition: Callable[[], bool]) -> list[Frame]:
    frames: list[Frame] = []
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        frames += hub.poll(0.02)
    return frames


def test_a_rank_introduces_itself_and_reports_in_order(hub: Hub, connect: Connect):
    link = connect(3)
    for number in range(5):
        link.post_report(b'{"report":%d}\n' % number)
    hello, *reports = await_frames(hub, 6)
    assert (hello.op, hello.header) == (
        "hello",
        {"op": "hello", "rank": 3, "attempt": 2, "pid": 103},
    )
    assert said(reports) == [("report", 3)] * 5
    assert [report.body for report in reports] == [b'{"report":%d}\n' % n for n in range(5)]


def test_a_command_reaches_the_ranks_that_it_is_for(hub: Hub, connect: Connect):
    first, second = connect(0), connect(1)
    await_frames(hub, 2)
    hub.send("call", b"body", ranks=[1], call=7)
    hub.send("exit")
    command = second.next_command()
    assert command is not None
    assert (command.op, command.body, command.header["call"]) == ("call", b"body", 7)
    for link in (first, second):
        command = link.next_command()
        assert command is not None
        assert command.op == "exit"


def test_a_command_with_a_handler_is_handled_in_the_thread_of_the_link(hub: Hub, connect: Connect):
    handled: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    link = connect(0)
    link.handle("freeze", lambda frame: handled.put((frame.op, threading.current_thread().name)))
    await_frames(hub, 1)
    hub.send("freeze")
    assert handled.get(timeout=PATIENCE_S) == ("freeze", "hpctrain-link")


def test_a_rank_whose_handler_fails_still_receives_and_notices_the_end(
    hub: Hub, connect: Connect, capfd: pytest.CaptureFixture[str]
):
    lost, handled = threading.Event(), threading.Event()
    link = connect(0, on_lost=lost.set)

    def fail(_: Frame) -> None:
        raise OSError("no descriptor is left")

    link.handle("dump-stacks", fail)
    link.handle("freeze", lambda _: handled.set())
    await_frames(hub, 1)
    hub.send("dump-stacks")
    hub.send("freeze")
    assert handled.wait(PATIENCE_S)
    assert "OSError: no descriptor is left" in capfd.readouterr().err
    hub.close()
    assert lost.wait(PATIENCE_S)
    assert link.next_command() is None


def test_a_closed_link_writes_into_no_file_that_has_its_descriptors(
    hub: Hub, connect: Connect, tmp_path: Path
):
    link = connect(0)
    await_frames(hub, 1)
    link.close()
    paths = [tmp_path / str(number) for number in range(8)]
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(path.open("wb"))
        link.post_signal("SIGTERM")
        link.post_report(b"{}")
        link.post_report(b"{}")
    assert [path.read_bytes() for path in paths] == [b""] * 8


def test_a_large_body_arrives_whole(hub: Hub, connect: Connect):
    link = connect(0)
    await_frames(hub, 1)
    body = os.urandom(2**22)
    sender = threading.Thread(target=lambda: link.post("answer", body))
    sender.start()
    (frame,) = await_frames(hub, 1)
    sender.join(PATIENCE_S)
    assert frame.body == body
    hub.send("call", body)
    received: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: received.put(link.next_command()), daemon=True).start()
    poll_until(hub, lambda: not received.empty())
    command = received.get_nowait()
    assert command is not None
    assert command.body == body


def test_a_rank_that_dies_is_lost(hub: Hub, connect: Connect):
    link = connect(5)
    await_frames(hub, 1)
    link.close()
    (frame,) = await_frames(hub, 1)
    assert said([frame]) == [("lost", 5)]
    assert frame.header["agent"] is False


def test_a_rank_that_says_bye_is_not_lost(hub: Hub, connect: Connect):
    leaving, dying = connect(0), connect(1)
    await_frames(hub, 2)
    leaving.post("bye")
    leaving.close()
    assert said(await_frames(hub, 1)) == [("bye", 0)]
    dying.close()
    assert said(await_frames(hub, 1)) == [("lost", 1)]


def test_a_death_is_told_before_what_peers_say_of_it(hub: Hub, connect: Connect):
    peer, dying = connect(0), connect(1)
    await_frames(hub, 2)
    peer.post("failed", b"connection closed by peer")
    peer.drain(timeout_s=PATIENCE_S)
    dying.close()
    # Both connections are ready before the hub looks, so one poll has it all.
    assert said(await_frames(hub, 2)) == [("lost", 1), ("failed", 0)]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("reported", [(), (0,), (1,), (0, 1), (1, 0)])
def test_of_deaths_that_are_seen_together_the_first_one_is_told_first(
    hub: Hub, connect: Connect, first: int, reported: tuple[int, ...]
):
    """The launcher ends the peers of a rank that died: any may have reported just before."""
    ranks = [connect(0), connect(1)]
    await_frames(hub, 2)
    for rank in reported:
        ranks[rank].post("staged")
        ranks[rank].drain(timeout_s=PATIENCE_S)
    in_order = (first, 1 - first)
    for rank in in_order:
        ranks[rank].close()
    assert said(await_frames(hub, 2 + len(reported))) == [
        (op, rank)
        for rank in in_order
        for op in ("staged", "lost")
        if op == "lost" or rank in reported
    ]


def test_deaths_that_one_agent_tells_of_keep_their_order(hub: Hub, socket_name: str):
    def frame(op: str, rank: int) -> bytes:
        return encode_frame({"op": op, "rank": rank, "attempt": 2, "node": "n1"})

    hub.listen_locally(socket_name)
    with local_socket.connect(socket_name, timeout_s=PATIENCE_S) as agent:
        agent.send(frame("agent", -1) + b"".join(frame("hello", rank) for rank in (1, 2, 3)))
        await_frames(hub, 3)
        agent.send(frame("report", 3) + frame("lost", 3) + frame("failed", 1) + frame("lost", 2))
        assert said(await_frames(hub, 4)) == [
            ("report", 3),
            ("lost", 3),
            ("lost", 2),
            ("failed", 1),
        ]


def test_what_a_dying_rank_has_said_is_told_before_its_death(hub: Hub, socket_name: str):
    def frame(op: str, rank: int) -> bytes:
        return encode_frame({"op": op, "rank": rank, "attempt": 2, "node": "n1"})

    hub.listen_locally(socket_name)
    with local_socket.connect(socket_name, timeout_s=PATIENCE_S) as agent:
        agent.send(frame("agent", -1) + frame("hello", 0) + frame("hello", 1))
        await_frames(hub, 2)
        agent.send(frame("failed", 0) + frame("done", 1) + frame("lost", 1))
        assert said(await_frames(hub, 3)) == [("done", 1), ("lost", 1), ("failed", 0)]


def test_frames_of_another_attempt_are_dropped(hub: Hub, connect: Connect):
    straggler = connect(0, attempt=1)
    straggler.post("failed")
    connect(1)
    assert said(await_frames(hub, 1)) == [("hello", 1)]
    straggler.close()
    assert hub.poll(0.05) == []


def test_a_rank_whose_executor_goes_away_notices(hub: Hub, connect: Connect):
    lost = threading.Event()
    link = connect(0, on_lost=lost.set)
    await_frames(hub, 1)
    hub.close()
    assert lost.wait(PATIENCE_S)
    assert link.next_command() is None


def test_a_signal_is_passed_on_by_the_thread_of_the_link(hub: Hub, connect: Connect):
    link = connect(0)
    await_frames(hub, 1)
    link.post_signal("SIGUSR2")
    (frame,) = await_frames(hub, 1)
    assert (frame.op, frame.header["name"]) == ("signal", "SIGUSR2")


def test_a_child_that_a_rank_forks_does_not_keep_the_rank_alive(hub: Hub, connect: Connect):
    link = connect(0)
    await_frames(hub, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    link.close()
    assert said(await_frames(hub, 1)) == [("lost", 0)]
    os.close(writer)
    os.close(reader)
    os.waitpid(child, 0)


def test_a_connection_that_speaks_nonsense_loses_its_ranks_and_nobody_else(
    hub: Hub, connect: Connect, socket_name: str
):
    connect(0)
    with local_socket.connect(socket_name, timeout_s=PATIENCE_S) as intruder:
        intruder.send(encode_frame({"op": "hello", "rank": 1, "attempt": 2}))
        await_frames(hub, 2)
        intruder.send(join_frame(b"nonsense", b""))
        assert said(await_frames(hub, 1)) == [("lost", 1)]
    hub.send("exit")


def test_a_rank_that_finds_no_agent_says_where_it_looked(socket_name: str):
    what = rf"no process of hpctrain listens on {socket_name} after 0.05 s \(timeout soon\)"
    with pytest.raises(LinkTimeoutError, match=what):
        local_socket.connect(socket_name, timeout_s=Timeout(0.05, "soon", "an agent", "an error"))


def connect_in_background(
    addresses: list[str], credentials: Credentials
) -> tuple[threading.Thread, list[Link]]:
    links: list[Link] = []

    def connect() -> None:
        sock, seal = connect_tcp(addresses, credentials, timeout_s=PATIENCE_S)
        links.append(Link(sock, attempt=2, on_lost=lambda: None, seal=seal))

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    return thread, links


def test_whoever_knows_the_secret_is_let_in_over_tcp(hub: Hub):
    thread, links = connect_in_background(hub.listen_tcp(CREDENTIALS, only_here=True), CREDENTIALS)
    poll_until(hub, lambda: not thread.is_alive())
    links[0].introduce(4, {})
    assert said(await_frames(hub, 1)) == [("hello", 4)]
    links[0].close()
    assert said(await_frames(hub, 1)) == [("lost", 4)]


def test_whoever_connects_and_proves_nothing_is_shut_out_after_a_while(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hpctrain.timeouts.STRANGER_S", 0.2)
    host, _, port = hub.listen_tcp(CREDENTIALS, only_here=True)[0].rpartition(":")
    for beginning in (b"", b"half a proof"):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
            started = time.monotonic()
            sock.sendall(beginning)
            ended = threading.Event()

            def read_to_end(sock: socket.socket = sock, ended: threading.Event = ended) -> None:
                with suppress(ConnectionResetError):
                    while sock.recv(4096):
                        pass
                ended.set()

            threading.Thread(target=read_to_end).start()
            assert poll_until(hub, ended.is_set) == []
            assert time.monotonic() - started > 0.2


def test_whoever_does_not_know_the_secret_is_shut_out_and_never_heard(hub: Hub):
    addresses = hub.listen_tcp(CREDENTIALS, only_here=True)
    guess = Credentials(b"guess", run="/runs/one", attempt=2)
    errors: list[LinkTimeoutError] = []

    def connect() -> None:
        try:
            connect_tcp(addresses, guess, timeout_s=0.3)
        except LinkTimeoutError as error:
            errors.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    assert poll_until(hub, lambda: not thread.is_alive()) == []
    assert "closes the connection before it proves who it is" in str(errors[0])


@pytest.mark.parametrize(("run", "attempt"), [("/runs/two", 2), ("/runs/one", 3)])
def test_a_secret_is_that_of_one_run_and_one_attempt(hub: Hub, run: str, attempt: int):
    host, _, port = hub.listen_tcp(CREDENTIALS, only_here=True)[0].rpartition(":")
    other = Credentials(b"s" * SECRET_BYTES, run=run, attempt=attempt)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
        hub.poll(PATIENCE_S)
        nonces = sock.recv(NONCE_BYTES) + b"n" * NONCE_BYTES
        sock.sendall(nonces[NONCE_BYTES:] + other.prove(AGENT, nonces))
        hub.poll(PATIENCE_S)
        assert sock.recv(1) == b""


def test_a_connection_that_is_reset_at_once_does_not_harm_the_hub(hub: Hub):
    host, _, port = hub.listen_tcp(CREDENTIALS, only_here=True)[0].rpartition(":")
    for _ in range(3):
        sock = socket.create_connection((host, int(port)))
        # SO_LINGER of zero seconds: close() sends a reset, as a port scan does.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
    assert hub.poll(0.05) == []
    thread, links = connect_in_background([f"{host}:{port}"], CREDENTIALS)
    poll_until(hub, lambda: not thread.is_alive())
    links[0].introduce(0, {})
    assert said(await_frames(hub, 1)) == [("hello", 0)]
    links[0].close()


def test_a_hub_closes_whoever_has_not_proved_anything_yet():
    hub = Hub(attempt=1)
    host, _, port = hub.listen_tcp(CREDENTIALS, only_here=True)[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as waiting:
        hub.poll(PATIENCE_S)
        hub.close()
        assert len(waiting.recv(1000)) == 32
        assert waiting.recv(1000) == b""


def test_an_executor_that_cannot_be_reached_is_named_with_every_address_that_was_tried():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        host = socket.gethostname()
        message = rf"{host} cannot reach the executor after 0.05 s: {address}: .*refus"
        with pytest.raises(LinkTimeoutError, match=message):
            connect_tcp([address], CREDENTIALS, timeout_s=0.05)


def test_a_node_whose_agent_says_nothing_for_long_is_given_up():
    hub = Hub(attempt=2, silence_s=0.5)
    thread, links = connect_in_background(hub.listen_tcp(CREDENTIALS, only_here=True), CREDENTIALS)
    poll_until(hub, lambda: not thread.is_alive())
    links[0].post("agent", node="n7")
    poll_until(hub, lambda: hub.num_agents == 1)
    links[0].introduce(5, {})
    poll_until(hub, lambda: hub.num_ranks == 1)
    (lost,) = [f for f in poll_until(hub, lambda: hub.num_agents == 0) if f.op == "lost"]
    assert (lost.header["rank"], lost.header["agent"]) == (5, True)
    assert hub.lost_nodes == {"n7": True}
    links[0].close()
    hub.close()


def test_a_node_whose_agent_is_gone_is_not_known_to_be_dead(hub: Hub):
    thread, links = connect_in_background(hub.listen_tcp(CREDENTIALS, only_here=True), CREDENTIALS)
    poll_until(hub, lambda: not thread.is_alive())
    links[0].post("agent", node="n7")
    poll_until(hub, lambda: hub.num_agents == 1)
    links[0].close()
    poll_until(hub, lambda: hub.num_agents == 0)
    assert hub.lost_nodes == {"n7": False}


def test_agents_are_told_to_leave(hub: Hub):
    thread, links = connect_in_background(hub.listen_tcp(CREDENTIALS, only_here=True), CREDENTIALS)
    poll_until(hub, lambda: not thread.is_alive())
    links[0].post("agent", node="n7")
    poll_until(hub, lambda: hub.num_agents == 1)
    hub.send_agents("agent-exit")
    command = links[0].next_command()
    assert command is not None
    assert command.op == "agent-exit"
    links[0].close()


def test_agents_that_stay_introduce_themselves_to_the_next_attempt(hub: Hub):
    thread, links = connect_in_background(hub.listen_tcp(CREDENTIALS, only_here=True), CREDENTIALS)
    poll_until(hub, lambda: not thread.is_alive())
    links[0].post("agent", node="n7")
    poll_until(hub, lambda: hub.num_agents == 1)
    hub.begin_attempt(9)
    command = links[0].next_command()
    assert command is not None
    assert (command.op, command.header["attempt"]) == ("begin", 9)
    assert hub.num_agents == 1
    assert not hub.nodes, "it has not answered yet"
    links[0].close()


def test_what_an_agent_has_measured_is_known_as_long_as_it_is_there(hub: Hub):
    thread, links = connect_in_background(hub.listen_tcp(CREDENTIALS, only_here=True), CREDENTIALS)
    poll_until(hub, lambda: not thread.is_alive())
    links[0].post("agent", node="n7")
    links[0].post("beat", use={"cpus": 4})
    poll_until(hub, lambda: hub.node_use() == {"n7": {"cpus": 4}})
    # A heartbeat without figures, and one that is none.
    links[0].post("beat")
    links[0].post("beat", use=[1])
    links[0].introduce(5, {})
    poll_until(hub, lambda: hub.num_ranks == 1)
    assert hub.node_use() == {"n7": {"cpus": 4}}
    links[0].close()
    poll_until(hub, lambda: hub.num_agents == 0)
    assert hub.node_use() == {}


def test_a_silence_counts_as_long_as_the_executor_itself_runs(
    socket_name: str, monkeypatch: pytest.MonkeyPatch
):
    now = [100.0]
    monkeypatch.setattr(hub_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    hub = Hub(attempt=2, silence_s=5.0)
    hub.listen_locally(socket_name)
    with local_socket.connect(socket_name, timeout_s=PATIENCE_S) as agent:
        agent.send(encode_frame({"op": "agent", "attempt": 2, "node": "n1"}))
        agent.send(encode_frame({"op": "hello", "rank": 0, "attempt": 2}))
        await_frames(hub, 1)
        # The whole job stands still; its agents may go on a little later than the executor.
        now[0] += 3600.0
        for _ in range(8):
            now[0] += 0.5
            assert hub.poll(0.0) == []
        now[0] += 1.0
        assert said(hub.poll(0.0)) == [("lost", 0)]
    assert hub.lost_nodes == {"n1": True}
    hub.close()
