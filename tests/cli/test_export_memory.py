"""A checkpoint is exported by the command in an eighth of its size: the kernel sets the limit."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore
from hpctrain.testing.slurm import memory_cgroups
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)

FORMATS = ("safetensors", "dcp", "torch")
MIB = 2**20
PART_MIB = 256
# The state is made in files: it need not fit into the memory of this process either.
MAKE = """
import os, sys
import torch
from hpctrain.torch import save_state

folder, parts, numbers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = torch.nn.Module()
for number in range(parts):
    name = f"{folder}.{number}"
    whole = torch.from_file(name, shared=True, size=numbers, dtype=torch.float32)
    os.unlink(name)
    whole.uniform_()
    model.register_buffer(f"w{number}", whole.view(2**10, -1))
save_state(folder, model=model)
"""


@dataclass(frozen=True)
class Taken:
    """What an export took."""

    said: dict[str, Any]
    peak_mib: int
    """Of what was in its memory, files that it has mapped included."""


# The peak of a process begins with the size of the one that it is forked from: not with that of the
# tests, which may have imported much.
MEASURE = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss, flush=True)
sys.exit(os.waitstatus_to_exitcode(status))
"""


class MemoryLimit:
    """A cgroup where this process may make one, else a limit of the process alone."""

    def __init__(self, limit_mib: int) -> None:
        self._bytes = limit_mib * MIB
        self._group: Path | None = None
        if os.geteuid() == 0 and memory_cgroups.is_mounted():
            self._group = memory_cgroups.HIERARCHY / f"hpctrain-export-{os.getpid()}"
            self._group.mkdir()
            (self._group / "memory.limit_in_bytes").write_text(str(self._bytes))

    def enter(self) -> None:
        """Limit this process, before it begins its program."""
        if self._group is None:
            resource.setrlimit(resource.RLIMIT_DATA, (self._bytes, self._bytes))
        else:
            (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def close(self) -> None:
        """Remove the group, whose processes have ended."""
        if (group := self._group) is not None:
            wait_until(lambda: not (group / "cgroup.procs").read_text(), "its end")
            group.rmdir()


@pytest.fixture(params=[384, pytest.param(1024, marks=pytest.mark.long)], scope="module")
def limit(request: pytest.FixtureRequest) -> int:
    """MiB that an export may use."""
    return int(request.param)


@pytest.fixture(scope="module")
def run(limit: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run with a checkpoint of eight times that size."""
    run = tmp_path_factory.mktemp("storage") / "run"
    size = 8 * limit * MIB
    if shutil.disk_usage(run.parent).free < 3 * size:
        pytest.skip(f"the state and a copy of it need {2 * size // MIB} MiB of disk")
    run.mkdir()
    store = CheckpointStore(run / "checkpoints")
    store.prepare()
    (run / "plan.json").write_text("{}")
    part = staging_directory(run / "checkpoints", attempt=1, report=1, rank=0)
    part.mkdir(parents=True)
    parts = size // MIB // PART_MIB
    argv = [sys.executable, "-c", MAKE, part, str(parts), str(PART_MIB * MIB // 4)]
    subprocess.run(argv, check=True, timeout=900)
    sealed = {0: StagedPart(files=tuple(seal(part)), name=None)}
    store.commit(attempt=1, report=1, world_size=1, metrics={}, parts=sealed)
    yield run
    shutil.rmtree(run)


def export(run: Path, target: Path, *, format: str, limit_mib: int) -> Taken:
    limit = MemoryLimit(limit_mib)
    command = ("checkpoints", "export", run, target, "--format", format, "--json")
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", MEASURE, sys.executable, "-m", "hpctrain.cli", *command],
            stdout=subprocess.PIPE,
            preexec_fn=limit.enter,
            check=True,
        )
    finally:
        limit.close()
    said, _, peak_kib = done.stdout.rstrip().rpartition(b"\n")
    return Taken(said=json.loads(said), peak_mib=int(peak_kib) // 1024)


@pytest.mark.parametrize("format", FORMATS)
def test_a_model_is_exported_and_verified_in_an_eighth_of_its_size(
    run: Path, limit: int, tmp_path: Path, format: str
) -> None:
    taken = export(run, tmp_path / "out", format=format, limit_mib=limit)
    print(f"{8 * limit} MiB as {format}: {taken.peak_mib} MiB at most, of {limit}")
    assert taken.said["verified"] is True
    assert taken.said["bytes"] == 8 * limit * MIB
    assert taken.peak_mib < limit
    shutil.rmtree(tmp_path)
