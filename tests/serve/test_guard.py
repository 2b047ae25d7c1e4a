"""What a request has to pass, called without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from hpctrain.serve.app import make_app
from hpctrain.serve.guard import Limits
from hpctrain.serve.model import ServedModel
from tests.serve.test_app import TOKEN, Sums

BODY = json.dumps({"columns": {"a": [1], "b": [2]}}).encode()


class Request:
    """A request whose body comes in parts; None is one that never comes."""

    def __init__(self, *parts: bytes | None, token: str = TOKEN, length: int | None = None) -> None:
        self.read = 0
        self._parts = list(parts)
        headers = [
            (b"authorization", f"Bearer {token}".encode()),
            (b"content-type", b"application/json"),
        ]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": "/predict",
            "raw_path": b"/predict",
            "query_string": b"",
            "root_path": "",
            "headers": headers,
        }

    async def receive(self) -> dict[str, Any]:
        self.read += 1
        if not self._parts:
            await asyncio.Event().wait()
        part = self._parts.pop(0)
        if part is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": part, "more_body": bool(self._parts)}


def answer_all(requests: Iterable[Request], limits: Limits) -> list[int]:
    model = ServedModel(Sums, name="sums")
    model.start()
    assert model.wait(10)
    app = make_app(model, token=TOKEN, limits=limits)

    async def answer(request: Request) -> int:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(request.scope, request.receive, send)
        return int(sent[0]["status"])

    async def answer_together() -> list[int]:
        return await asyncio.wait_for(asyncio.gather(*map(answer, requests)), 30)

    return asyncio.run(answer_together())


def test_a_body_in_parts_is_read() -> None:
    assert answer_all([Request(BODY[:5], BODY[5:])], Limits(body_bytes=len(BODY))) == [200]


def test_nothing_is_read_without_the_token_or_over_the_limit() -> None:
    stranger, large = Request(BODY, token="another"), Request(BODY, length=1 << 40)
    assert answer_all([stranger, large], Limits()) == [401, 413]
    assert (stranger.read, large.read) == (0, 0)


def test_a_body_without_a_length_is_read_up_to_the_limit() -> None:
    request = Request(*[b" " * 10] * 100)
    assert answer_all([request], Limits(body_bytes=95, discarded_bytes=0)) == [413]
    assert request.read == 10


def test_of_a_body_over_the_limit_more_is_read_so_that_its_client_sees_the_answer() -> None:
    parts = [b" " * 10] * 100
    limits = Limits(body_bytes=95, discarded_bytes=905)
    requests = [Request(*parts), Request(*parts, length=1000)]
    assert answer_all(requests, limits) == [413, 413]
    assert [request.read for request in requests] == [100, 100]
    # Some, but not for ever.
    limits = Limits(body_bytes=95, discarded_bytes=200, body_s=0.1)
    requests = [Request(*parts), Request(*parts, length=1000), Request(None, length=200)]
    assert answer_all(requests, limits) == [413, 413, 413]
    assert [request.read for request in requests] == [30, 0, 1]
    # Who asks first has not begun to send.
    asking = Request(None, length=200)
    asking.scope["headers"].append((b"expect", b"100-continue"))
    assert answer_all([asking], limits) == [413]
    assert asking.read == 0


@pytest.mark.parametrize("parts", [(None,), (BODY[:5], None)])
def test_half_a_body_is_given_up(parts: tuple[bytes | None, ...]) -> None:
    assert answer_all([Request(*parts)], Limits(body_s=0.1)) == [408]


def test_of_too_many_requests_some_are_refused_at_once() -> None:
    waiting = [Request(BODY[:5], None) for _ in range(3)]
    limits = Limits(requests=3, body_s=0.5)
    assert answer_all([*waiting, Request(BODY)], limits) == [408, 408, 408, 503]
    assert answer_all([Request(BODY)], limits) == [200]
