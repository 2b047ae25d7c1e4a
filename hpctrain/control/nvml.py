"""`GpuMeter`: how busy the NVIDIA GPUs of this node are, by NVML, the library of their driver.

Nothing has to be installed for it. A driver may take seconds to answer, so a thread asks it.
"""

from __future__ import annotations

import ctypes
import threading
import time

_LIBRARY = "libnvidia-ml.so.1"
_INTERVAL_S = 5.0
# What a driver that hangs has answered last means nothing.
_LONGEST_AGE_S = 30.0
_MIB = 2**20
_MOST_GPUS = 64


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class GpuMeter:
    """The GPUs that this process may see, as a thread has seen them last.

    Parameters
    ----------
    library
        File of NVML.
    """

    def __init__(self, library: str = _LIBRARY) -> None:
        self._library = library
        self._found: list[list[int | None]] = []
        self._found_at = time.monotonic()
        self.thread = threading.Thread(target=self._look, name="hpctrain-gpus", daemon=True)
        """Ends where there is nothing to ask."""
        self.thread.start()

    def read(self) -> list[list[int | None]]:
        """Return percent busy, MiB in use and MiB of each GPU; null is not known. Not collective.

        Never waits. Empty before the first answer of the driver, and if it answers no more.
        """
        if time.monotonic() - self._found_at > _LONGEST_AGE_S:
            return []
        return self._found

    def _look(self) -> None:
        try:
            nvml = ctypes.CDLL(self._library)
            if nvml.nvmlInit_v2() != 0:
                return
            while True:
                # A call through ctypes releases the GIL.
                self._found, self._found_at = _read_all(nvml), time.monotonic()
                time.sleep(_INTERVAL_S)
        except (OSError, AttributeError):
            # No such library, or a function that an older one has not.
            return


def _read_all(nvml: ctypes.CDLL) -> list[list[int | None]]:
    count = ctypes.c_uint(0)
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    return [_read_one(nvml, index) for index in range(min(count.value, _MOST_GPUS))]


def _read_one(nvml: ctypes.CDLL, index: int) -> list[int | None]:
    device = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
        return [None, None, None]
    use, memory = _Utilization(), _Memory()
    # A GPU in MIG mode has no utilization of its own.
    has_use = nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use)) == 0
    has_memory = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
    return [
        use.gpu if has_use else None,
        memory.used // _MIB if has_memory else None,
        memory.total // _MIB if has_memory else None,
    ]
