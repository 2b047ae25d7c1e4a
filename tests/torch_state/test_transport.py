"""How ranks send each other blocks by torch's process group."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import distributed

from hpctrain.torch.state.engine.transport import _host_group, transport
from hpctrain.world import SerialComm


@pytest.fixture(autouse=True)
def _no_group_stays() -> Iterator[None]:
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _begin(backend: str) -> None:
    store = distributed.HashStore()
    distributed.init_process_group(backend, store=store, rank=0, world_size=1)


def test_a_group_that_is_destroyed_sends_nothing_any_more() -> None:
    _begin("gloo")
    first = _host_group()
    assert _host_group() is first is distributed.GroupMember.WORLD
    distributed.destroy_process_group()
    _begin("gloo")
    assert _host_group() is not first
    assert _host_group() is distributed.GroupMember.WORLD


def test_beside_a_group_of_devices_there_is_one_of_the_host() -> None:
    # It registers a backend that sends nothing.
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    for _ in range(2):
        _begin("fake")
        group = _host_group()
        assert distributed.get_backend(group) == "gloo"
        assert _host_group() is group
        distributed.destroy_process_group()


def test_what_a_load_that_failed_has_sent_is_not_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tags = []

    def begin(comm: object, content: memoryview, rank: int, *, tag: int) -> SimpleNamespace:
        tags.append(tag)
        return SimpleNamespace(Test=lambda: True)

    monkeypatch.setattr("hpctrain.worker.mpi.start_sending", begin)
    monkeypatch.setattr("hpctrain.worker.mpi.start_receiving", begin)
    for _ in range(2):
        carrier = transport(SerialComm())
        assert carrier.send(memoryview(b"x"), 0).done()
        assert carrier.receive(memoryview(bytearray(1)), 0).done()
    first, again, second, once_more = tags
    assert first == again != second == once_more
    # Of MPI any implementation has so many.
    assert max(tags) < 2**15


def test_a_rank_of_gloo_that_fails_ends_at_once_and_the_others_are_told(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from torch import distributed
        from hpctrain.errors import CheckpointError
        from hpctrain.torch.state.ranks import GroupComm
        from hpctrain.torch.state.engine.transport import transport

        rank = int(sys.argv[1])
        distributed.init_process_group(
            "gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2
        )
        carrier = transport(GroupComm())
        pending = carrier.receive(memoryview(bytearray(1000)), 1 - rank)
        if rank == 0:
            raise SystemExit("no memory on the device")
        deadline = time.monotonic() + 60
        try:
            while not pending.done() and time.monotonic() < deadline:
                time.sleep(0.01)
        except CheckpointError as error:
            print(error)
        """
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (_, why), (told, _) = (rank.communicate(timeout=120) for rank in ranks)
    assert "no memory on the device" in why
    assert "rank 0 cannot be reached" in told
