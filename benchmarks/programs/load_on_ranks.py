"""Loads states on one or more ranks, arm by arm in turns, and prints what each took.

Usage: load_on_ranks.py FOLDER COMMAND [then COMMAND]...

COMMAND is ``save NAME MIB KIND`` or ``load ROUNDS COLD ARM...``.
KIND is ``plain``, ``sharded`` or ``replicated``. ARM is the name of a state; or
``raw:NAME:THREADS``, which reads the bytes of its files past the page cache and nothing else, and
with a ``w`` at its end through it; or ``bare:NAME:THREADS``, which hashes and copies them besides;
or ``torch:NAME:WAY`` of `checkpoint_peers`.
Every line of the output is a round of an arm: the number of the command, wall seconds of the
slowest rank, CPU seconds and bytes read of all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoint_peers
import raw_disk
import torch
from commands import split_commands
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from hpctrain.torch.state.load import load_into
from hpctrain.torch.state.save import write_state
from hpctrain.torch.state.state_dict.flatten import flatten_state
from hpctrain.world import SerialComm

TENSOR_ROWS = 4096
"""Of float32 tensors of 16 MiB that are sharded."""


class Ranks:
    """The ranks that MPI started, with a process group for the sharded tensors."""

    def __init__(self, folder: Path) -> None:
        self.comm: Any = SerialComm()
        self.mesh: DeviceMesh | None = None
        if int(os.environ.get("PMI_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))) > 1:
            from hpctrain.worker import mpi

            self.comm = mpi.initialize()
            store = folder / f".store-{self.comm.bcast(time.time_ns())}"
            distributed.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=self.comm.rank,
                world_size=self.comm.size,
            )
            self.mesh = init_device_mesh("cpu", (self.comm.size,))

    def barrier(self) -> None:
        """Wait without spinning, since ranks share cores."""
        if self.comm.size > 1:
            from hpctrain.worker import mpi

            assert mpi.wait_barrier(self.comm, timeout_s=300)

    def state(self, mib: int, kind: str) -> dict[str, torch.Tensor]:
        """Return tensors of this size in all, this rank's part of which has been touched."""
        if kind != "sharded" or self.mesh is None:
            return checkpoint_peers.make_state(mib * 2**20)
        rows = TENSOR_ROWS * 1024
        size = self.comm.size
        chunk = -(-TENSOR_ROWS // size)
        mine = max(0, min(chunk, TENSOR_ROWS - self.comm.rank * chunk))
        return {
            f"layers.{i:04d}.weight": DTensor.from_local(
                torch.full((mine, 1024), float(i)),
                self.mesh,
                [Shard(0)],
                run_check=False,
                shape=torch.Size((TENSOR_ROWS, 1024)),
                stride=(1024, 1),
            )
            for i in range(mib * 2**20 // (4 * rows))
        }


def main() -> None:
    """Save and load."""
    torch.set_num_threads(1)
    folder, *words = sys.argv[1:]
    ranks = Ranks(Path(folder))
    for number, (verb, *rest) in enumerate(split_commands(words)):
        if verb == "save":
            _save(ranks, Path(folder), *rest)
        else:
            _load(ranks, Path(folder), number, *rest)
        ranks.barrier()
    if ranks.comm.size > 1:
        from hpctrain.worker import mpi

        distributed.destroy_process_group()
        mpi.finalize()


def _save(ranks: Ranks, folder: Path, name: str, mib: str, kind: str) -> None:
    tensors = ranks.state(int(mib), kind)
    if kind == "plain":
        for way, save in checkpoint_peers.SAVES.items():
            checkpoint_peers.empty(folder / f"{name}-{way}")
            save(folder / f"{name}-{way}", tensors)
    state = flatten_state(others={"state": tensors})
    # Each rank writes a part of them, as of parameters.
    state = replace(state, replicated=frozenset(state.tensors))
    write_state(folder / name, state, ranks=ranks.comm)
    if ranks.comm.rank == 0:
        (folder / name / "kind").write_text(f"{mib} {kind}")


def _load(ranks: Ranks, folder: Path, command: int, rounds: str, cold: str, *arms: str) -> None:
    names = [arm.split(":")[1] if ":" in arm else arm for arm in arms]
    mib, kind = (folder / names[0] / "kind").read_text().split()
    tensors = ranks.state(int(mib), kind)
    for number in range(int(rounds) + 1):
        for arm, name in zip(arms, names, strict=True):
            action = _action(arm, folder, tensors, ranks)
            places = [folder / name, *folder.glob(f"{name}-*")]
            if ranks.comm.rank == 0:
                for path in (path for place in places for path in place.iterdir()):
                    (raw_disk.make_cold if cold == "cold" else raw_disk.make_warm)(path)
            ranks.barrier()
            begin, cpu = time.perf_counter(), raw_disk.cpu_s()
            read = action()
            cpu = raw_disk.cpu_s() - cpu
            ranks.barrier()
            wall = time.perf_counter() - begin
            cpu = sum(ranks.comm.allgather(cpu))
            # The first finds code and memory for the first time.
            if ranks.comm.rank == 0 and number > 0:
                line = {"command": command, "arm": arm, "wall_s": wall, "cpu_s": cpu}
                print(json.dumps({**line, "bytes_read": read}), flush=True)


_buffers: dict[tuple[str, int], Any] = {}


def _action(
    arm: str, folder: Path, tensors: dict[str, torch.Tensor], ranks: Ranks
) -> Callable[[], int]:
    make: Callable[[int], Any]
    read: Callable[..., Any]
    kind, _, rest = arm.partition(":")
    if not rest:
        return lambda: (
            load_into(
                folder / arm,
                model=None,
                optimizer=None,
                others={"state": tensors},
                ranks=ranks.comm,
            ).bytes_read
        )
    name, way = rest.split(":")
    if kind == "torch":
        load = checkpoint_peers.LOADS[way]
        place = folder / f"{name}-{'torch.save' if way.startswith('torch.') else way}"
        return lambda: load(place, tensors) or 0  # type: ignore[func-returns-value]
    path = sorted((folder / name).glob("*.safetensors"))[ranks.comm.rank]
    # In whole blocks: what is not is less than one, and the header.
    size = path.stat().st_size // raw_disk.BLOCK_BYTES * raw_disk.BLOCK_BYTES
    if kind == "bare":
        make, read = _memory_of_a_tensor, raw_disk.read_verified
    else:
        make = raw_disk.buffer
        read = raw_disk.read_buffered if way.endswith("w") else raw_disk.read_direct
    if (kind, size) not in _buffers:
        _buffers[kind, size] = make(size)
    memory, threads = _buffers[kind, size], int(way.removesuffix("w"))
    return lambda: read(path, memory, threads=threads) or size


def _memory_of_a_tensor(size: int) -> memoryview:
    """Return memory that is not on huge pages, as tensors are not, all of which is there."""
    content: memoryview = torch.ones(size, dtype=torch.uint8).numpy().data
    return content


if __name__ == "__main__":
    main()
