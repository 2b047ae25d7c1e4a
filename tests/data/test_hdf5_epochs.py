"""Epochs over HDF5 files of every kind: every row once, labels beside their rows."""

import numpy as np
import pytest

from hpctrain.data import read_hdf5
from hpctrain.data.chunks import ChunkReader

h5py = pytest.importorskip("h5py")
hdf5plugin = pytest.importorskip("hdf5plugin")

N = 2_500
X = np.random.default_rng(0).normal(size=(N, 5)).astype(np.float32).round(1)
Y = np.arange(N)


def write(path, rows, dtypes=("f4", "i8"), **how):
    with h5py.File(path, "w") as file:
        chunks = {"chunks": (128, 5)} if how else {}
        file.create_dataset("x", data=X[rows].astype(dtypes[0]), **chunks, **how)
        # Labels have chunks of another size, or none.
        file.create_dataset(
            "y", data=Y[rows].astype(dtypes[1]), **({"chunks": (300,)} if how else {})
        )
    return path


def several(folder):
    write(folder / "a.h5", slice(900))
    write(folder / "b.h5", slice(900, 900))
    write(folder / "c.h5", slice(900, None), compression="gzip")
    return [folder / name for name in ("a.h5", "b.h5", "c.h5")]


def virtual(folder):
    layouts = {"x": h5py.VirtualLayout((N, 5), "f4"), "y": h5py.VirtualLayout((N,), "i8")}
    for start in range(0, N, 1000):
        path = write(folder / f"part-{start}.h5", slice(start, start + 1000))
        with h5py.File(path) as part:
            for name, layout in layouts.items():
                layout[start : start + 1000] = h5py.VirtualSource(path.name, name, part[name].shape)
    with h5py.File(folder / "whole.h5", "w") as file:
        for name, layout in layouts.items():
            file.create_virtual_dataset(name, layout)
    return folder / "whole.h5"


KINDS = {
    "contiguous": lambda folder: write(folder / "x.h5", slice(None)),
    "chunked": lambda folder: write(folder / "x.h5", slice(None), fillvalue=0),
    "gzip": lambda folder: write(folder / "x.h5", slice(None), compression="gzip", shuffle=True),
    "lzf": lambda folder: write(folder / "x.h5", slice(None), compression="lzf"),
    "blosc-lz4": lambda folder: write(
        folder / "x.h5", slice(None), **hdf5plugin.Blosc(cname="lz4")
    ),
    "big-endian": lambda folder: write(folder / "x.h5", slice(None), dtypes=(">f4", ">i8")),
    "several-files": several,
    "virtual": virtual,
}


@pytest.fixture(params=KINDS)
def dataset(request, tmp_path):
    return read_hdf5(KINDS[request.param](tmp_path))


def rows_of(batches):
    pieces = [(batch["x"].copy(), batch["y"].copy()) for batch in batches]
    return np.concatenate([x for x, _ in pieces]), np.concatenate([y for _, y in pieces])


def test_rows_come_in_the_order_of_the_file(dataset):
    x, y = rows_of(dataset.iter_batches(batch_size=100))

    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)


@pytest.mark.parametrize("world_size", [1, 3])
def test_shuffled_rows_come_once_with_their_labels(dataset, world_size):
    shards = [dataset.shard(rank=rank, world_size=world_size) for rank in range(world_size)]
    parts = [
        rows_of(shard.iter_batches(batch_size=64, local_shuffle_buffer_size=1000))
        for shard in shards
    ]

    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    assert sorted(y) == list(range(N))
    assert np.array_equal(x, X[y])
    assert np.mean(np.diff(y) == 1) < 0.05


def test_batches_that_are_kept_do_not_change(dataset):
    kept = list(dataset.shard(rank=0, world_size=1).iter_batches(batch_size=64, shuffle=True))

    y = np.concatenate([batch["y"] for batch in kept])
    assert sorted(y) == list(range(N))
    assert np.array_equal(np.concatenate([batch["x"] for batch in kept]), X[y])


def test_half_an_epoch_of_two_ranks_is_finished_by_three(dataset):
    def shard(rank, world_size):
        return dataset.shard(rank=rank, world_size=world_size)

    def batches(shard):
        return shard.iter_batches(batch_size=50, local_shuffle_buffer_size=700)

    seen = []
    for rank in range(2):
        first = shard(rank, 2)
        for _, batch in zip(range(9), batches(first), strict=False):
            seen += batch["y"].tolist()
        state = first.state_dict()
    for rank in range(3):
        rest = shard(rank, 3)
        rest.load_state_dict(state)
        for batch in batches(rest):
            seen += batch["y"].tolist()

    assert sorted(seen) == list(range(N))


def test_each_chunk_of_several_files_is_decoded_once(tmp_path, monkeypatch):
    paths = [
        write(tmp_path / f"{start}.h5", slice(start, start + 900), compression="gzip")
        for start in range(0, N, 900)
    ]
    loaded = []
    load = ChunkReader._load
    monkeypatch.setattr(
        ChunkReader,
        "_load",
        lambda self, index, out: loaded.append(index) or load(self, index, out),
    )

    for _ in read_hdf5(paths, columns=["x"]).iter_batches(batch_size=100):
        pass

    assert len(loaded) == sum(-(-rows // 128) for rows in (900, 900, 700))
