from __future__ import annotations

import fcntl
import json
import resource
import socket
import struct
from collections.abc import Iterator
from textwrap import dedent

import pytest

from hpctrain.control import wire
from hpctrain.control.batches import BATCH_BYTES
from hpctrain.control.proof import AGENT, EXECUTOR, Credentials
from hpctrain.control.wire import (
    MAX_CONTENT_BYTES,
    FrameSocket,
    ProtocolError,
    encode_frame,
    join_frame,
)
from tests.processes import REFUSED_BY_FIPS, run_python


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, FrameSocket]]:
    left, right = socket.socketpair()
    frames = FrameSocket(right)
    with left:
        yield left, frames
    frames.close()


# man 2 select
FD_SETSIZE = 1024
Ends = tuple[socket.socket, FrameSocket]


def test_a_frame_comes_out_as_it_went_in_even_byte_by_byte(ends: Ends):
    sender, receiver = ends
    raw = encode_frame({"op": "report", "rank": 3}, b"\x00body\xff")
    for byte in raw[:-1]:
        sender.send(bytes([byte]))
        assert receiver.receive() == []
    sender.send(raw[-1:])
    (frame,) = receiver.receive()
    assert (frame.op, frame.header["rank"], frame.body) == ("report", 3, b"\x00body\xff")
    assert frame.raw == raw


def test_several_frames_in_one_piece_come_out_in_order_and_the_rest_waits(ends: Ends):
    sender, receiver = ends
    frames = [encode_frame({"op": "report", "n": n}, b"x" * n) for n in range(5)]
    sender.send(b"".join(frames)[:-1])
    assert [frame.header["n"] for frame in receiver.receive()] == [0, 1, 2, 3]
    sender.send(frames[-1][-1:])
    assert [frame.header["n"] for frame in receiver.receive()] == [4]


def test_a_header_that_is_encoded_already_is_joined_with_its_body():
    header = {"op": "report", "rank": 1}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    assert join_frame(encoded, b"body") == encode_frame(header, b"body")


@pytest.mark.parametrize(("header", "body"), [(2**20 + 1, 0), (2, 2**30 + 1)])
def test_an_oversize_frame_is_refused_before_it_is_read(ends: Ends, header: int, body: int):
    sender, receiver = ends
    sender.send(struct.pack(">II", header, body))
    with pytest.raises(ProtocolError, match=rf"a frame of {header} \+ {body} bytes"):
        receiver.receive()


def test_a_frame_that_the_other_side_would_refuse_is_not_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wire, "_MAX_BODY_BYTES", 2000)
    with pytest.raises(ProtocolError, match=r"a frame of 10 \+ 2001 bytes, and .* \+ 2000 is the"):
        encode_frame({"op": "x"}, bytes(2001))
    with pytest.raises(ProtocolError, match=r"and 1048576 \+ 2000 is the most"):
        encode_frame({"op": "x" * 2**20})


def test_the_largest_content_fits_into_a_frame_of_its_own_and_into_a_batch():
    largest = MAX_CONTENT_BYTES + 2**20 + len(join_frame(b"", b"")) + BATCH_BYTES
    assert largest <= 2**30


def test_a_header_that_is_not_json_is_refused(ends: Ends):
    sender, receiver = ends
    sender.send(join_frame(b"GET / HTTP/1.1", b""))
    with pytest.raises(ProtocolError, match="a header that is not JSON"):
        receiver.receive()


def test_the_end_of_the_stream_closes_it_after_its_last_frames(ends: Ends):
    sender, receiver = ends
    sender.send(encode_frame({"op": "bye"}))
    sender.close()
    assert [frame.op for frame in receiver.receive()] == ["bye"]
    receiver.receive()
    assert receiver.closed


def test_what_does_not_fit_waits_and_goes_out_with_a_later_flush(ends: Ends):
    peer, sender = ends
    body = b"x" * 2**22
    sender.post(encode_frame({"op": "big"}, body))
    assert sender.pending_bytes
    assert not sender.flush()
    receiver = FrameSocket(peer)
    received = []
    while not received:
        received = receiver.receive()
        sender.flush()
    assert received[0].body == body
    assert sender.flush()
    assert sender.pending_bytes == 0


def test_sending_to_a_peer_that_is_gone_is_not_an_error_and_its_last_words_are_read(ends: Ends):
    peer, frames = ends
    peer.send(encode_frame({"op": "failed"}))
    peer.close()
    frames.post(encode_frame({"op": "stop"}))
    assert frames.flush()
    assert [frame.op for frame in frames.receive()] == ["failed"]


Between = tuple[FrameSocket, FrameSocket, socket.socket, socket.socket]


@pytest.fixture
def between() -> Iterator[Between]:
    """The ends of a connection through somebody in between, and that one's sockets."""
    credentials, nonces = Credentials(b"s", run="/runs/one", attempt=1), b"n" * 64
    first, left = socket.socketpair()
    second, right = socket.socketpair()
    executor = FrameSocket(first, credentials.seal(EXECUTOR, nonces))
    agent = FrameSocket(second, credentials.seal(AGENT, nonces))
    with left, right:
        yield executor, agent, left, right
    executor.close()
    agent.close()


def test_frames_with_macs_go_both_ways(between: Between):
    executor, agent, left, right = between
    for number in range(3):
        executor.post(encode_frame({"op": "call", "n": number}, b"body"))
        agent.post(encode_frame({"op": "report", "n": number}))
    right.send(left.recv(4096))
    left.send(right.recv(4096))
    assert [(f.op, f.header["n"], f.body) for f in agent.receive()] == [
        ("call", n, b"body") for n in range(3)
    ]
    assert [(f.op, f.header["n"]) for f in executor.receive()] == [("report", n) for n in range(3)]


def test_a_body_of_many_records_arrives_whole_though_it_comes_in_parts(between: Between):
    executor, agent, left, right = between
    body = bytes(range(256)) * 2**12
    executor.queue(encode_frame({"op": "call"}, body))
    executor.queue(encode_frame({"op": "exit"}))
    frames = []
    while len(frames) < 2:
        executor.flush()
        right.send(left.recv(100_000))
        frames += agent.receive()
    assert [(frame.op, frame.body) for frame in frames] == [("call", body), ("exit", b"")]
    assert executor.pending_bytes == 0


def test_a_length_that_nobody_vouches_for_is_not_waited_for(between: Between):
    _, agent, _, right = between
    right.send(struct.pack(">I", 2**16 + 1))
    with pytest.raises(ProtocolError, match="a record whose MAC is not"):
        agent.receive()


@pytest.mark.parametrize("what", ["changed", "repeated", "dropped", "sent back", "added"])
def test_who_is_in_between_can_do_nothing_to_frames(between: Between, what: str):
    executor, agent, left, right = between
    sent = []
    for number in range(2):
        executor.post(encode_frame({"op": "call", "n": number}))
        sent.append(left.recv(4096))
    first, second = sent
    if what == "sent back":
        left.send(first)
        with pytest.raises(ProtocolError, match="a record whose MAC is not"):
            executor.receive()
        return
    right.send(
        {
            "changed": first.replace(b"call", b"exit"),
            "repeated": first + first,
            "dropped": second,
            "added": first + encode_frame({"op": "call"}) + bytes(16),
        }[what]
    )
    with pytest.raises(ProtocolError, match="a record whose MAC is not"):
        agent.receive()


def test_a_proof_is_of_one_role_run_attempt_and_pair_of_nonces():
    proofs = {
        Credentials(secret, run=run, attempt=attempt).prove(role, nonces)
        for secret in (b"a", b"b")
        for run in ("/runs/one", "/runs/two")
        for attempt in (1, 2)
        for role in (AGENT, EXECUTOR)
        for nonces in (b"1" * 64, b"2" * 64)
    }
    assert len(proofs) == 32
    assert {len(proof) for proof in proofs} == {32}


def test_a_python_in_fips_mode_proves_itself_and_makes_macs():
    code = """
        from hpctrain.control.proof import AGENT, EXECUTOR, Credentials
        credentials, nonces = Credentials(b"s" * 32, run="/runs/one", attempt=1), b"n" * 64
        assert credentials.is_proved(AGENT, nonces, credentials.prove(AGENT, nonces))
        record, content = bytearray(), bytearray()
        credentials.seal(AGENT, nonces).wrap(bytearray(b"content"), record)
        assert credentials.seal(EXECUTOR, nonces).unwrap(record, content)
        assert content == b"content"
    """
    run_python("-c", REFUSED_BY_FIPS + dedent(code))


def test_room_is_waited_for_with_any_descriptor(many_descriptors: None):
    left, right = socket.socketpair()
    with left, right:
        high = socket.socket(fileno=fcntl.fcntl(right.fileno(), fcntl.F_DUPFD, FD_SETSIZE))
        frames = FrameSocket(high)
        frames.queue(bytes(2**24))
        assert not frames.flush()
        frames.await_room(0.0)
        while not frames.flush():
            left.recv(2**20)
            frames.await_room(1.0)
        frames.close()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * FD_SETSIZE, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
