"""The figures of GPUs, by a library that stands for NVIDIA's: these machines have no GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hpctrain.control.nvml import GpuMeter
from tests.waiting import wait_until

# The functions of NVML that are called, as nvml.h declares them.
SOURCE = """
#include <stddef.h>
typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return index == 2 ? 15 : 0;
}
int nvmlDeviceGetUtilizationRates(void *device, Utilization *use) {
    use->gpu = 40 + (size_t)device;
    return device == (void *)2 ? 3 : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    memory->total = 80ull << 30;
    memory->used = 3ull << 30;
    return 0;
}
"""


def build(directory: Path, *, init: int = 0) -> str:
    if (compiler := shutil.which("gcc") or shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    source, library = directory / "nvml.c", directory / "libnvidia-ml.so.1"
    source.write_text(SOURCE)
    argv = [compiler, "-shared", "-fPIC", f"-DINIT={init}", "-o", str(library), str(source)]
    subprocess.run(argv, check=True)
    return str(library)


def test_each_gpu_is_read_and_what_the_driver_does_not_know_is_null(tmp_path: Path) -> None:
    meter = GpuMeter(build(tmp_path))
    # The second is in MIG mode, the third has fallen off the bus.
    assert wait_until(meter.read, "an answer of the library") == [
        [41, 3072, 81920],
        [None, 3072, 81920],
        [None, None, None],
    ]


@pytest.mark.parametrize("library", ["libnvidia-ml.so.no-such", "libc.so.6"])
def test_without_the_library_there_are_no_gpus(library: str) -> None:
    meter = GpuMeter(library)
    meter.thread.join(10)
    assert not meter.thread.is_alive()
    assert meter.read() == []


def test_a_driver_that_does_not_start_has_no_gpus(tmp_path: Path) -> None:
    meter = GpuMeter(build(tmp_path, init=9))
    meter.thread.join(10)
    assert meter.read() == []


def test_what_a_driver_that_hangs_said_last_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = GpuMeter(build(tmp_path))
    wait_until(meter.read, "an answer of the library")
    monkeypatch.setattr("hpctrain.control.nvml._LONGEST_AGE_S", -1.0)
    assert meter.read() == []
