"""What is read past HDF5 is what h5py reads."""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hpctrain.data.hdf5_reader import Hdf5Reader, read_through_hdf5
from hpctrain.data.layout import Chunked, Contiguous, Opaque, Virtual, find_layout
from hpctrain.data.open_files import OpenFiles

h5py = pytest.importorskip("h5py")
hdf5plugin = pytest.importorskip("hdf5plugin")

N = 1003
X = np.random.default_rng(0).normal(size=(N, 7)).astype(np.float32).round(1)


def open_reader(path):
    return Hdf5Reader(str(path), lambda name: h5py.File(name, "r"), readers)


readers = OpenFiles(open_reader)


def read(reader, name, rows):
    with h5py.File(reader._raw.path, "r") as file:
        out = np.empty((len(rows), *file[name].shape[1:]), file[name].dtype)
    reader.read_into(name, rows, out)
    return out


@pytest.fixture
def file(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w", userblock_size=512) as file:
        yield file


def check(file, name, kind, raw=True):
    """Compare some ranges of rows with h5py's."""
    layout = find_layout(file[name])
    assert isinstance(layout, kind)
    file.flush()
    path, expected = file.filename, file[name][:]
    file.close()
    reader = open_reader(path)
    for rows in (range(N), range(0), range(1), range(5, 700), range(99, 301), range(1000, N)):
        assert np.array_equal(read(reader, name, rows), expected[rows.start : rows.stop])
    assert raw == (getattr(reader._found[name][2], "func", None) is not read_through_hdf5)
    reader.close()


def test_a_closed_reader_that_somebody_still_has_keeps_no_file_open(file):
    file["x"] = X
    path = file.filename
    file.close()
    before = set(os.listdir("/proc/self/fd"))
    reader = open_reader(path)
    read(reader, "x", range(5))
    reader.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_contiguous_rows(file):
    file["x"] = X
    check(file, "x", Contiguous)


def test_labels_beside_them(file):
    file["x"], file["group/y"] = X, np.arange(N)
    check(file, "group/y", Contiguous)


@pytest.mark.parametrize("dtype", ["bool", "i1", "u2", "f2", "f8", "c8", ">f4", ">i8"])
def test_types_of_numbers(file, dtype):
    file["x"] = (X * 10).astype(dtype)
    check(file, "x", Contiguous)


@pytest.mark.parametrize("chunks", [(100, 7), (64, 3), (1, 7), (N, 1), (2000, 7)])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"compression": "gzip"},
        {"compression": "gzip", "shuffle": True},
        hdf5plugin.Blosc(cname="lz4"),
        hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.BITSHUFFLE),
    ],
    ids=["plain", "gzip", "gzip-shuffle", "blosc-lz4", "blosc-zstd-bitshuffle"],
)
def test_chunks(file, how, chunks):
    maxshape = (None, 7)
    file.create_dataset("x", data=X, chunks=chunks, maxshape=maxshape, **how)
    check(file, "x", Chunked)


@pytest.mark.parametrize(
    "how",
    [{"compression": "lzf"}, {"compression": "gzip", "fletcher32": True}, hdf5plugin.Zstd()],
    ids=["lzf", "gzip-fletcher32", "zstd"],
)
def test_filters_that_only_hdf5_knows(file, how):
    file.create_dataset("x", data=X, chunks=(100, 7), **how)
    check(file, "x", Chunked, raw=False)


def test_chunks_that_were_never_written(file):
    x = file.create_dataset("x", (N, 7), "f4", chunks=(100, 7), fillvalue=2.5)
    x[300:450] = X[300:450]
    check(file, "x", Chunked)


def test_rows_that_were_taken_away_and_added(file):
    x = file.create_dataset("x", data=X, chunks=(100, 3), maxshape=(None, 7))
    x.resize((150, 7))
    x.resize((N, 7))
    check(file, "x", Chunked)


def test_a_dataset_that_was_never_written(file):
    file.create_dataset("x", (N, 7), "f4")
    check(file, "x", Opaque, raw=False)


def test_a_compact_dataset_is_left_to_hdf5(file):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((N,))
    h5py.h5d.create(file.id, b"y", h5py.h5t.NATIVE_INT8, space, properties)
    file["y"][:] = np.arange(N, dtype=np.int8)
    check(file, "y", Opaque, raw=False)


def virtual(file, tmp_path, parts, shape=(N, 7)):
    layout = h5py.VirtualLayout(shape, "f4")
    for number, (rows, source_row) in enumerate(parts):
        path = tmp_path / f"part-{number}.h5"
        with h5py.File(path, "w") as part:
            before = np.zeros((source_row, 7), "f4")
            kind = {"compression": "gzip", "chunks": (5, 7)} if number else {}
            whole = np.concatenate([before, X[rows.start : rows.stop]])
            part.create_dataset("deep/x", data=whole, **kind)
            source = h5py.VirtualSource(path.name, "deep/x", part["deep/x"].shape)
        layout[rows.start : rows.stop] = source[source_row:]
    file.create_virtual_dataset("x", layout, fillvalue=-1)


def test_a_virtual_dataset_over_files(file, tmp_path):
    virtual(file, tmp_path, [(range(400), 0), (range(400, 700), 30), (range(700, N), 0)])
    check(file, "x", Virtual)


def test_a_virtual_dataset_over_many_files(file, tmp_path):
    borders = [*range(0, N, 50), N]
    virtual(file, tmp_path, [(range(a, b), 3) for a, b in itertools.pairwise(borders)])
    check(file, "x", Virtual)


def test_a_virtual_dataset_over_files_of_another_type(file, tmp_path):
    with h5py.File(tmp_path / "doubles.h5", "w") as part:
        part["x"] = X.astype("f8")
        source = h5py.VirtualSource("doubles.h5", "x", (N, 7), "f8")
    layout = h5py.VirtualLayout((N, 7), "f4")
    layout[:] = source
    file.create_virtual_dataset("x", layout)
    check(file, "x", Virtual)


def test_a_virtual_dataset_with_a_gap_is_left_to_hdf5(file, tmp_path):
    virtual(file, tmp_path, [(range(400), 0), (range(500, N), 0)])
    check(file, "x", Opaque, raw=False)


def test_a_virtual_dataset_of_columns_is_left_to_hdf5(file, tmp_path):
    file["part"] = X[:, :3]
    layout = h5py.VirtualLayout((N, 7), "f4")
    layout[:, 2:5] = h5py.VirtualSource(file["part"])
    file.create_virtual_dataset("x", layout)
    check(file, "x", Opaque, raw=False)


def test_a_virtual_dataset_in_one_file(file):
    file["whole"] = X
    layout = h5py.VirtualLayout((N, 7), "f4")
    layout[:] = h5py.VirtualSource(file["whole"])
    file.create_virtual_dataset("x", layout)
    check(file, "x", Virtual)


def test_strings(file):
    names = np.array([f"row {number}" for number in range(N)], dtype=object)
    file["name"] = names
    path = file.filename
    file.close()
    out = np.empty(5, dtype=object)

    open_reader(path).read_into("name", range(7, 12), out)

    assert out.tolist() == names[7:12].tolist()


@pytest.mark.parametrize("how", [{}, {"compression": "gzip"}, {"compression": "lzf"}])
def test_rows_become_what_is_asked_for(file, how):
    file.create_dataset("x", data=X.astype("i2"), **how)
    path = file.filename
    file.close()
    wide = np.zeros((100, 14))

    open_reader(path).read_into("x", range(200, 300), wide[:, ::2])

    assert np.array_equal(wide[:, ::2], X[200:300].astype("i2"))
    assert not wide[:, 1::2].any()


def test_many_threads_read_one_file(file):
    file.create_dataset("x", data=X, chunks=(100, 3), compression="gzip")
    file["y"] = np.arange(N)
    path = file.filename
    file.close()
    reader = open_reader(path)
    together = threading.Barrier(4)

    def go(start):
        together.wait(timeout=10)
        for first in range(start, N - 150, 37):
            x, y = np.empty((150, 7), "f4"), np.empty(150, np.int64)
            reader.read_into("x", range(first, first + 150), x)
            reader.read_into("y", range(first, first + 150), y)
            assert np.array_equal(x, X[y])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(go, range(4)))


@pytest.mark.parametrize("how", [{}, {"compression": "gzip"}, hdf5plugin.Blosc()])
def test_a_chunk_that_was_damaged_is_an_error_and_not_other_rows(file, how):
    # Numbers that do not compress, so that what is damaged is data.
    noise = np.random.default_rng(1).random((N, 7))
    file.create_dataset("x", data=noise, chunks=(500, 7), **how)
    path, layout = file.filename, find_layout(file["x"])
    file.close()
    with open(path, "r+b") as raw:
        if how:
            raw.seek(int(layout.offsets[0]))
            raw.write(b"\xff" * 64)
        else:
            raw.truncate(int(layout.offsets[-1]) + 10)
    try:
        reader = open_reader(path)
    except OSError:
        # HDF5 looks at the length of the file too.
        return

    with pytest.raises(OSError, match=r"not there|chunk 0"):
        reader.read_into("x", range(N), np.empty((N, 7)))
