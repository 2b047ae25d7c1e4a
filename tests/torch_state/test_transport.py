"""How ranks send each other blocks by torch's process group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import distributed

from hpctrain.torch.state.transport import _host_group


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
