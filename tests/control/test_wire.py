from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator

import pytest

from hpctrain.control.wire import (
    FrameSocket,
    ProtocolError,
    answer_challenge,
    encode_frame,
    join_frame,
)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, FrameSocket]]:
    left, right = socket.socketpair()
    frames = FrameSocket(right)
    with left:
        yield left, frames
    frames.close()


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


def test_the_answer_to_a_challenge_depends_on_the_secret_and_the_nonce():
    answers = {answer_challenge(secret, nonce) for secret in (b"a", b"b") for nonce in (b"1", b"2")}
    assert len(answers) == 4
    assert {len(answer) for answer in answers} == {32}
