"""``in-order``, ``shuffled``, ``loader``, ``cold``, ``compressed``: an epoch over an HDF5 dataset.

Whoever is compared copies or gathers the same rows, in the same order, into one batch that stays in
the cache, as a loop over arrays in memory would. ``loader`` and ``cold`` are about what else people
would read with, and about the disk.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from arms import Arm, Goal, Measured, OthersShare, Row, Sample, alternate

ROWS = 9_000_000
COLUMNS = 28
BATCH = 4096
SEED = 7
CHUNK = 8192
LOADER_ROWS = 5 * BATCH
"""Rows that the loader is given; its time for all follows from that."""


def measure_in_order(arguments: Namespace) -> Iterator[Measured]:
    with dataset(arguments) as (path, x):
        shard, batch = open_shard(arguments, path), new_batch()
        rows_of_file = h5py.File(path, "r")["x"]
        yield run(
            arguments,
            "in order",
            ours=lambda: read_epoch(shard),
            others={
                "copy in memory": lambda: [np.copyto(batch, x[rows]) for rows in full_batches(x)],
                "h5py slices": lambda: [
                    rows_of_file.read_direct(batch, rows) for rows in full_batches(x)
                ],
            },
            goals=[Goal(against="copy in memory", factor=1 / speed) for speed in (0.85, 1.0)],
        )


def measure_shuffled(arguments: Namespace) -> Iterator[Measured]:
    with dataset(arguments) as (path, x):
        shard, batch = open_shard(arguments, path), new_batch()
        order = order_of(path)

        def take() -> None:
            for rows in full_batches(x):
                np.take(x, order[rows], axis=0, out=batch, mode="clip")

        yield run(
            arguments,
            "shuffled",
            ours=lambda: read_epoch(shard, shuffle=True),
            others={"np.take in memory": take},
            goals=[Goal(against="np.take in memory", factor=1 / speed) for speed in (0.85, 1.0)],
        )


def measure_loader(arguments: Namespace) -> Iterator[Measured]:
    from torch.utils.data import DataLoader

    with dataset(arguments) as (path, x):
        shard = open_shard(arguments, path)
        order = order_of(path)[:LOADER_ROWS].tolist()
        loader = DataLoader(h5py.File(path, "r")["x"], batch_size=BATCH, sampler=order)

        def load() -> Sample:
            cpu_s, began = time.process_time(), time.perf_counter()
            for _ in loader:
                pass
            wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
            return Sample(wall_s * len(x) / len(order), cpu_s * len(x) / len(order))

        yield run(
            arguments,
            "loader",
            ours=lambda: read_epoch(shard, shuffle=True),
            others={"torch DataLoader": load},
            goals=[Goal(against="torch DataLoader", factor=1 / speed) for speed in (150, 350)],
        )


def measure_cold(arguments: Namespace) -> Iterator[Measured]:
    with dataset(arguments) as (path, _):
        shard = open_shard(arguments, path)

        def ours() -> float:
            forget(path)
            began = time.perf_counter()
            read_epoch(shard, shuffle=True)
            return time.perf_counter() - began

        def disk() -> float:
            forget(path)
            began = time.perf_counter()
            read_directly(path)
            return time.perf_counter() - began

        yield run(
            arguments,
            "shuffled, cold",
            ours=ours,
            others={"raw disk read": disk},
            goals=[Goal(against="raw disk read", factor=1 / 0.9)],
        )


def measure_compressed(arguments: Namespace) -> Iterator[Measured]:
    cores = len(os.sched_getaffinity(0))
    with dataset(arguments, **hdf5plugin.Blosc(cname="lz4")) as (path, x):
        shard, file = open_shard(arguments, path), h5py.File(path, "r")
        rows = np.zeros((CHUNK, COLUMNS), np.float32)

        def decode() -> None:
            for start in range(0, len(x) - CHUNK + 1, CHUNK):
                file["x"].read_direct(rows, np.s_[start : start + CHUNK])

        name = f"h5py / {cores} cores"
        yield run(
            arguments,
            "compressed",
            ours=lambda: read_epoch(shard),
            others={name: lambda: timed(decode) / cores},
            goals=[Goal(against=name, factor=1 / speed) for speed in (0.7, 0.9)],
        )


def run(
    arguments: Namespace,
    name: str,
    *,
    ours: Callable[[], Any],
    others: dict[str, Callable[[], Any]],
    goals: list[Goal],
) -> Measured:
    """Measure functions by turns; one that returns seconds, or a sample, has taken these."""
    row = Row(
        name=name,
        ours=arm("iter_batches", ours),
        others=[arm(other, function) for other, function in others.items()],
        goals=goals,
    )
    share = OthersShare()
    measured = alternate(row, rounds=arguments.rounds, say=arguments.say)
    return replace(measured, others_share=share.take())


def arm(name: str, function: Callable[[], Any]) -> Arm:
    def measure() -> Sample:
        cpu_s, began = time.process_time(), time.perf_counter()
        result = function()
        if isinstance(result, Sample):
            return result
        wall_s = result if isinstance(result, float) else time.perf_counter() - began
        return Sample(wall_s, time.process_time() - cpu_s)

    return Arm(name=name, measure=measure)


def timed(function: Callable[[], None]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def read_epoch(shard: Any, **how: Any) -> int:
    return sum(len(batch["x"]) for batch in iter_batches(shard, **how))


def iter_batches(shard: Any, **how: Any) -> Iterator[dict[str, np.ndarray]]:
    """Return the batches of the first epoch."""
    shard.load_state_dict({**shard.state_dict(), "epoch": 0, "taken": [], "mixing": None})
    batches: Iterator[dict[str, np.ndarray]] = shard.iter_batches(
        batch_size=BATCH, local_shuffle_seed=SEED, **how
    )
    return batches


def open_shard(arguments: Namespace, path: Path) -> Any:
    if str(arguments.tree) not in sys.path:
        sys.path.insert(0, str(arguments.tree))
    from hpctrain.data import read_hdf5

    return read_hdf5(path).shard(rank=0, world_size=1)


def order_of(path: Path) -> np.ndarray:
    """Return which row comes when in the first shuffled epoch."""
    from hpctrain.data import read_hdf5
    from hpctrain.data.stream import choose_mixing

    source = read_hdf5(path).source
    mixing = choose_mixing(source, source.schema.row_bytes, buffer_rows=None, seed=SEED)
    order = mixing.order(source.num_rows, epoch=0)
    return np.concatenate([order.window(number).rows() for number in range(order.num_windows)])


@contextmanager
def dataset(arguments: Namespace, **compression: Any) -> Iterator[tuple[Path, np.ndarray]]:
    """Write rows into a file; yield it, and the rows in memory."""
    (rows,) = arguments.sizes or (ROWS,)
    x = np.random.default_rng(SEED).random((rows, COLUMNS), np.float32)
    if compression:
        # What an instrument measures has fewer digits than a float, or nothing would be smaller.
        np.copyto(x, np.floor(x * 256) / 256)
        compression["chunks"] = (min(CHUNK, rows), COLUMNS)
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
        path = Path(folder, "rows.h5")
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=x, **compression)
        os.sync()
        yield path, x


def full_batches(x: np.ndarray) -> Iterator[slice]:
    return (slice(at, at + BATCH) for at in range(0, len(x) - BATCH + 1, BATCH))


def new_batch() -> np.ndarray:
    return np.zeros((BATCH, COLUMNS), np.float32)


def forget(path: Path) -> None:
    """Take a file out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read_directly(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, 8 * 2**20)
    while os.readv(fd, [memory]) == len(memory):
        pass
    os.close(fd)
