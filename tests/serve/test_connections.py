"""Connections of a server whose clients are slow, or do nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from hpctrain import timeouts
from hpctrain.serve import connections
from hpctrain.serve.connections import BoundedProtocol
from hpctrain.serve.server import Service, _listening
from tests.serve.test_app import Sums
from tests.waiting import wait_until

MIB = 1 << 20
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LAST_GET = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
PATIENCE_S = 30.0


class Server:
    """A server on the loop of the test, whose answer has `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.state = ServerState()
        self.port = 0

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b" " * self.size})

    @property
    def connections(self) -> list[BoundedProtocol]:
        return [each for each in self.state.connections if isinstance(each, BoundedProtocol)]

    async def connect(self, content: bytes = b"") -> socket.socket:
        """Return a client that takes little before it reads, and has sent `content`."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        client.setblocking(False)
        before = self.connections
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", self.port))
        if content:
            await loop.sock_sendall(client, content)
            await until(lambda: any(each.unread_bytes for each in self.connections))
        else:
            await until(lambda: any(each not in before for each in self.connections))
        return client


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), PATIENCE_S)


@asynccontextmanager
async def served(size: int) -> AsyncIterator[Server]:
    server = Server(size)
    config = uvicorn.Config(
        server.answer, interface="asgi3", log_level="error", lifespan="off", http=BoundedProtocol
    )
    config.load()
    loop = asyncio.get_running_loop()

    def make() -> BoundedProtocol:
        return BoundedProtocol(config=config, server_state=server.state, app_state={}, _loop=loop)

    listener = await loop.create_server(make, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for each in server.connections:
            each.transport.abort()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 2 * PATIENCE_S)

    asyncio.run(bounded())


def test_a_client_that_reads_nothing_is_closed() -> None:
    async def test() -> None:
        async with served(16 * MIB) as server:
            for request in (GET * 100, LAST_GET):
                client = await server.connect(request)
                (connection,) = server.connections
                connection._watch()
                connection._watch()
                await until(lambda: not server.connections)
                client.close()

    run(test)


def test_a_client_that_reads_slowly_gets_the_whole_response() -> None:
    async def test() -> None:
        async with served(16 * MIB) as server:
            client = await server.connect(GET)
            (connection,) = server.connections
            received = 0
            while received < 16 * MIB:
                chunk = await asyncio.get_running_loop().sock_recv(client, MIB)
                assert chunk, f"closed after {received} bytes"
                if (received + len(chunk)) // MIB > received // MIB:
                    connection._watch()
                received += len(chunk)
            client.close()

    run(test)


def test_the_time_to_the_next_request_begins_when_the_response_has_arrived() -> None:
    async def test() -> None:
        async with served(MIB) as server:
            client = await server.connect(GET)
            (connection,) = server.connections
            connection._watch()
            received = 0
            while received < MIB:
                received += len(await asyncio.get_running_loop().sock_recv(client, MIB))
            await until(lambda: connection.is_idle)
            connection._watch()
            assert not connection.transport.is_closing()
            connection._watch()
            assert connection.transport.is_closing()
            client.close()

    run(test)


@pytest.mark.parametrize("content", [GET * 100, LAST_GET], ids=["many", "last"])
def test_clients_that_read_nothing_keep_nobody_out(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)

    async def test() -> None:
        async with served(16 * MIB) as server:
            held = [await server.connect(content) for _ in range(3)]
            await until(lambda: sum(each.unread_bytes > 0 for each in server.connections) == 3)
            first = min(server.connections, key=lambda each: each._since)
            new = await server.connect()
            await until(lambda: first not in server.connections)
            await asyncio.get_running_loop().sock_sendall(new, GET)
            answer = await asyncio.get_running_loop().sock_recv(new, 100)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            for client in (*held, new):
                client.close()

    run(test)


def test_clients_that_connect_at_once_are_no_more_than_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)

    async def test() -> None:
        async with served(1) as server:
            # The loop accepts all of them in one turn: it does not run meanwhile.
            clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(9)]
            await until(lambda: bool(server.connections))
            await until(lambda: len(server.connections) <= 3)
            for client in clients:
                client.close()

    run(test)


def test_a_server_ends_though_a_client_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "SERVER_END_S", 1.0)
    service = Service(
        checkpoint=tmp_path, predictor_cls=Sums, predictor_kwargs={}, token="a-token-of-the-test"
    )
    with _listening(service) as (_, server, listener, url), socket.socket() as client:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until(lambda: server.started, "the server runs")
        assert httpx.get(f"{url}/healthz", timeout=PATIENCE_S).status_code == 200
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        client.connect(listener.getsockname())
        client.setblocking(False)
        request = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"

        def is_full() -> bool:
            try:
                client.send(request * 100)
            except BlockingIOError:
                pass
            found: list[Any] = list(server.server_state.connections)
            return any(each.flow.write_paused for each in found)

        wait_until(is_full, "nothing more can be sent to the client")
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
