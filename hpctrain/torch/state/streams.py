"""Copies from devices, behind what the training function's thread gives them to do.

Most tests run where there is no GPU, with a stand-in that says what is asked of one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import torch

from hpctrain.bulk.ring import Ring
from hpctrain.bulk.slots import Slots

# cudaHostRegisterPortable: pinned for all devices.
_PORTABLE = 1


def copy_tensors(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy tensors into others, and return when all is there. Not collective.

    It is one call, which does not hold Python's lock. Copies from a device go on behind it, all at
    a time.
    """
    devices = {source.device for source in sources if not source.is_cpu}
    torch._foreach_copy_(targets, sources, non_blocking=bool(devices))
    wait_for_devices(devices)


def wait_for_devices(devices: Iterable[torch.device]) -> None:
    """Wait until devices have done what they have got from this thread. Not collective.

    Others, whose streams do not wait for this one's, may then write to its tensors.
    """
    for device in devices:
        if device.type != "cpu":
            torch.get_device_module(device).current_stream(device).synchronize()


class StreamEvents:
    """Where the streams of devices stand in the thread that makes this.

    Parameters
    ----------
    devices
        Of tensors; that of the CPU has no stream.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._events = {
            device: torch.get_device_module(device).current_stream(device).record_event()
            for device in devices
            if device.type != "cpu"
        }

    @contextmanager
    def after(self) -> Iterator[None]:
        """Let another thread use streams of its own, which go on from that moment."""
        with ExitStack() as stack:
            for device, event in self._events.items():
                module = torch.get_device_module(device)
                # Else the thread would go back to the first device, and take memory there.
                stack.enter_context(module.device(device))
                stream = module.Stream(device)
                stream.wait_event(event)
                stack.enter_context(module.stream(stream))
            yield


def pin(memory: Slots | Ring, tensors: Iterable[torch.Tensor]) -> None:
    """Let CUDA copy into memory on its own, if the system allows it.

    Not collective. Otherwise copies go through a small buffer of the driver, and take longer.

    Parameters
    ----------
    memory
        What is copied into. It is let go once it is not used any more.
    tensors
        What is copied; if none of them is CUDA's, nothing is done.
    """
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is None:
        return
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = torch.frombuffer(memory.memory, dtype=torch.uint8).data_ptr()
    # In a thread that has used no device yet CUDA would take the first, and memory there.
    with torch.cuda.device(device):
        if int(runtime.cudaHostRegister(address, len(memory.memory), _PORTABLE)) == 0:
            weakref.finalize(memory, _unpin, address, device, os.getpid())
            return
        # CUDA keeps the error for the next call of cudaGetLastError, which torch makes after each
        # kernel: this kernel gets it instead of one of the model.
        with suppress(RuntimeError):
            torch.zeros(1, device=device)


def _unpin(address: int, device: torch.device, process: int) -> None:
    if os.getpid() != process:
        # A child that was forked has neither the memory nor CUDA.
        return
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
