"""What is asked of a device and of CUDA, by a stand-in for both.

`test_devices` saves and loads on a real one, where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hpctrain.bulk.ring import Ring
from hpctrain.bulk.slots import Slots
from hpctrain.bulk.state_file import BLOCK_BYTES
from hpctrain.torch.state.streams import StreamEvents, copy_tensors, pin, wait_for_devices

DEVICE = torch.device("cuda", 1)


class StandInModule:
    """A device's module: who did what, in its order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.used = "the usual stream"
        self.current = torch.device("cuda", 0)

    def current_stream(self, device: torch.device) -> StandInStream:
        assert device != torch.device("cpu")
        return StandInStream(self, self.used)

    def Stream(self, device: torch.device) -> StandInStream:  # noqa: N802
        assert device == DEVICE
        return StandInStream(self, "its own")

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before

    @contextmanager
    def stream(self, stream: StandInStream) -> Iterator[None]:
        # Going back to another device's stream would begin to use that device.
        assert self.current == DEVICE
        before, self.used = self.used, stream.name
        yield
        self.used = before


class StandInStream:
    def __init__(self, module: StandInModule, name: str) -> None:
        self.name, self._module = name, module

    def record_event(self) -> str:
        self._module.log.append(f"event in {self.name}")
        return f"event in {self.name}"

    def wait_event(self, event: str) -> None:
        self._module.log.append(f"{self.name} waits for {event}")

    def synchronize(self) -> None:
        self._module.log.append(f"host waits for {self.name}")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> StandInModule:
    module = StandInModule()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return module


def test_another_thread_goes_on_from_where_the_device_was(module: StandInModule) -> None:
    moment = StreamEvents([torch.device("cpu"), DEVICE])
    assert module.log == ["event in the usual stream"]
    with moment.after():
        assert module.used == "its own"
    assert module.used == "the usual stream"
    assert module.log[1:] == ["its own waits for event in the usual stream"]


def test_the_cpu_has_nothing_to_wait_for(module: StandInModule) -> None:
    with StreamEvents([torch.device("cpu")]).after():
        copy_tensors([target := torch.zeros(3)], [torch.ones(3)])
    assert target.tolist() == [1, 1, 1]
    assert module.log == []


def test_copies_of_a_device_are_there_when_the_call_returns(
    module: StandInModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(targets: Any, sources: Any, *, non_blocking: bool) -> None:
        module.log.append(f"copies of {len(sources)}, {non_blocking=}")

    monkeypatch.setattr(torch, "_foreach_copy_", copy)
    # Of a device that is none: there are no bytes to copy.
    sources = [torch.ones(3, device="meta"), torch.ones(3)]
    copy_tensors([torch.zeros(3), torch.zeros(3)], sources)
    assert module.log == ["copies of 2, non_blocking=True", "host waits for the usual stream"]


def test_threads_that_write_to_a_device_come_after_what_it_does(module: StandInModule) -> None:
    wait_for_devices({torch.device("cpu"), DEVICE})
    assert module.log == ["host waits for the usual stream"]


class StandInRuntime:
    """CUDA's, which has this to say of memory."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.registered: dict[int, int] = {}
        self.current = torch.device("cuda", 0)
        self.has_error = False

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        assert (flags, self.current) == (1, DEVICE)
        if self._status == 0:
            self.registered[address] = size
        self.has_error = self._status != 0
        return self._status

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802
        assert self.current == DEVICE
        del self.registered[address]

    def run_a_kernel(self, *_: Any, device: torch.device) -> None:
        assert device == self.current == DEVICE
        if self.has_error:
            self.has_error = False
            raise RuntimeError("CUDA error: out of memory")


class StandInTensor:
    """Somewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_cuda = device, device.type == "cuda"


TENSORS: Any = [StandInTensor(torch.device("cpu")), StandInTensor(DEVICE)]


def _use(runtime: StandInRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", runtime.device)
    monkeypatch.setattr(torch, "zeros", runtime.run_a_kernel)


@pytest.mark.parametrize("kind", [Ring, Slots])
def test_memory_is_pinned_for_as_long_as_it_is_used(
    monkeypatch: pytest.MonkeyPatch, kind: type[Ring] | type[Slots]
) -> None:
    runtime = StandInRuntime(0)
    _use(runtime, monkeypatch)
    memory = kind(2)
    pin(memory, TENSORS[:1])
    assert runtime.registered == {}
    pin(memory, TENSORS)
    assert list(runtime.registered.values()) == [2 * BLOCK_BYTES]
    del memory
    assert runtime.registered == {}


def test_memory_that_cannot_be_pinned_leaves_no_error_to_the_next_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = StandInRuntime(2)
    _use(runtime, monkeypatch)
    pin(Ring(1), TENSORS)
    assert not runtime.has_error
