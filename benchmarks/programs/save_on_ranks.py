"""Saves a state on one or more ranks, arm by arm in turns, and prints what each took.

Usage: save_on_ranks.py FOLDER COMMAND [then COMMAND]...

COMMAND is ``MIB KIND ROUNDS NEIGHBOUR ARM...``.
KIND is ``sharded`` or ``replicated``; NEIGHBOUR is ``busy`` for a thread beside it that runs
Python all the time, else ``calm``. ARM is ``ours``, ``raw:THREADS``, which writes as many bytes and
nothing else, or one of `checkpoint_peers`. Every line of the output is a round of an arm: the
number of the command, wall seconds of the slowest rank, CPU seconds of all, the most memory that a
rank came to need for it, and the bytes that each rank wrote.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_peers
import raw_disk
import torch
from commands import split_commands
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from hpctrain.torch.state.save import save_state
from hpctrain.world import SerialComm

ROW_BYTES = 4096


def main() -> None:
    """Save in turns."""
    torch.set_num_threads(1)
    folder, *words = sys.argv[1:]
    comm = _join(Path(folder).resolve())
    for number, command in enumerate(split_commands(words)):
        _save(comm, folder, number, *command)
    _leave(comm)


def _save(
    comm: Any,
    folder: str,
    command: int,
    mib: str,
    kind: str,
    rounds: str,
    neighbour: str,
    *arms: str,
) -> None:
    state = _state(int(mib) * 2**20, kind, comm)
    raw = raw_disk.buffer(int(mib) * 2**20 // comm.size)
    done = threading.Event()
    if neighbour == "busy":
        threading.Thread(target=_run_python, args=[done], daemon=True).start()
    for number in range(int(rounds) + 1):
        for arm in arms:
            place = Path(folder, arm.replace(":", "-"))
            if comm.rank == 0:
                checkpoint_peers.empty(place)
            action = _action(arm, place, state, raw, comm)
            _barrier(comm)
            resident = _restart_peak()
            begin, cpu = time.perf_counter(), raw_disk.cpu_s()
            action()
            cpu = raw_disk.cpu_s() - cpu
            _barrier(comm)
            wall = time.perf_counter() - begin
            grown = _status_bytes("VmHWM") - resident
            spent, peaks = sum(comm.allgather(cpu)), comm.allgather(grown)
            if comm.rank == 0:
                written = sorted(f.stat().st_size for f in place.iterdir() if f.suffix != ".json")
                line = {"command": command, "arm": arm, "round": number, "wall_s": wall}
                more = {"cpu_s": spent, "grown": max(peaks), "written": written}
                print(json.dumps({**line, **more}), flush=True)
    done.set()


def _join(folder: Path) -> Any:
    if int(os.environ.get("PMI_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))) == 1:
        return SerialComm()
    from hpctrain.worker import mpi

    comm: Any = mpi.initialize()
    store = folder / f".store-{comm.bcast(time.time_ns())}"
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size
    )
    return comm


def _leave(comm: Any) -> None:
    _barrier(comm)
    if comm.size > 1:
        from hpctrain.worker import mpi

        distributed.destroy_process_group()
        mpi.finalize()


def _barrier(comm: Any) -> None:
    """Wait without spinning, since ranks share cores."""
    if comm.size > 1:
        from hpctrain.worker import mpi

        assert mpi.wait_barrier(comm, timeout_s=300)


def _state(size: int, kind: str, comm: Any) -> dict[str, torch.Tensor]:
    if kind == "replicated" or comm.size == 1:
        return checkpoint_peers.make_state(size)
    mesh = init_device_mesh("cpu", (comm.size,))
    mine = checkpoint_peers.make_state(size // comm.size)
    return {
        name: DTensor.from_local(tensor.view(-1, ROW_BYTES // 4), mesh, [Shard(0)], run_check=False)
        for name, tensor in mine.items()
    }


def _action(
    arm: str, place: Path, state: dict[str, torch.Tensor], raw: Any, comm: Any
) -> Callable[[], None]:
    if arm == "ours":
        # With a process group ranks talk to each other through that, else there is one rank.
        model = torch.nn.ParameterDict(
            {
                name.replace(".", "_"): torch.nn.Parameter(tensor, requires_grad=False)
                for name, tensor in state.items()
            }
        )
        return lambda: save_state(place, model=model)
    if arm.startswith("raw:"):
        path, threads = place / f"{comm.rank}.raw", int(arm.removeprefix("raw:"))
        return lambda: raw_disk.write_direct(path, raw, threads=threads)
    if arm == "gather + torch.save":
        local = {name: getattr(tensor, "_local_tensor", tensor) for name, tensor in state.items()}
        return lambda: checkpoint_peers.gather_and_save(place, local)
    save = checkpoint_peers.SAVES[arm]
    return lambda: save(place, state)


def _restart_peak() -> int:
    """Let the kernel count the peak of this process's memory anew; return what it has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def _run_python(done: threading.Event) -> None:
    while not done.is_set():
        pass


if __name__ == "__main__":
    main()
