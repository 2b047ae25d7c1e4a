"""Windows of rows: the right ones, in the right order, all columns alike."""

import pickle

import numpy as np
import pytest

from hpctrain.data.order import Shuffle
from hpctrain.data.window import PIECE_BYTES, Memory, WindowReader

N = 5_000
ROWS = {
    "x": np.arange(N * 3, dtype=np.float32).reshape(N, 3),
    "label": np.arange(N, dtype=np.int64),
    "big_endian": np.arange(N).astype(">i4"),
    "name": np.array([f"row {number}" for number in range(N)], dtype=object),
}
COLUMNS = {name: (array.dtype, array.shape[1:]) for name, array in ROWS.items()}


def read_into(rows, out):
    assert rows.step == 1
    for name, array in out.items():
        np.copyto(array, ROWS[name][rows.start : rows.stop])


def joined(tasks):
    pieces = [{name: array.copy() for name, array in task().items()} for task in tasks]
    for piece in pieces:
        assert {name: (array.dtype, array.shape[1:]) for name, array in piece.items()} == COLUMNS
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in COLUMNS}


@pytest.mark.parametrize("positions", [[range(N)], [range(17, 18)], [range(900), range(4000, N)]])
def test_shuffled_rows_are_those_of_the_order_in_every_column(positions):
    shuffle = Shuffle(num_rows=N, slab_rows=70, slabs_per_window=5, seed=1)
    order = np.concatenate([shuffle.window(w).rows() for w in range(shuffle.num_windows)])
    expected = np.concatenate([order[part.start : part.stop] for part in positions])

    found = joined(WindowReader(read_into, COLUMNS, Memory()).shuffled(shuffle, positions))

    for name, array in ROWS.items():
        assert np.array_equal(found[name], array[expected])


@pytest.mark.parametrize("unit_rows", [1, 64, 700])
@pytest.mark.parametrize("batch_size", [1, 32, 1000])
def test_rows_in_order_are_whole_and_cut_where_units_end(unit_rows, batch_size):
    positions = [range(3, 2000), range(2500, N)]
    tasks = WindowReader(read_into, COLUMNS, Memory()).in_order(
        positions, unit_rows=unit_rows, batch_size=batch_size
    )
    pieces = [{name: array.copy() for name, array in task().items()} for task in tasks]

    expected = np.r_[3:2000, 2500:N]
    assert np.array_equal(np.concatenate([p["label"] for p in pieces]), expected)
    edges = {3, 2500, *(int(piece["label"][0]) for piece in pieces)} - {3, 2500}
    assert all(edge % unit_rows == 0 for edge in edges)


def test_pieces_have_the_size_that_reads_well():
    reader = WindowReader(read_into, {"x": COLUMNS["x"]}, Memory())
    sizes = [task.args[0] for task in reader.in_order([range(10**6)], batch_size=4096)]

    assert {len(rows) % 4096 for rows in sizes[:-1]} == {0}
    assert PIECE_BYTES / 2 < len(sizes[0]) * 12 <= PIECE_BYTES


def test_memory_of_an_epoch_serves_the_next_one():
    memory = Memory()
    addresses = []
    for epoch in range(2):
        shuffle = Shuffle(num_rows=N, slab_rows=50, slabs_per_window=2, seed=1, epoch=epoch)
        tasks = WindowReader(read_into, COLUMNS, memory).shuffled(shuffle, [range(N)])
        addresses.append({task()["x"].ctypes.data for task in tasks})

    assert addresses[0] == addresses[1]


def test_memory_does_not_travel():
    memory = Memory()
    buffers = memory.buffers("x", np.dtype("f4"), (1000, 3))

    copy = pickle.loads(pickle.dumps(memory))

    assert len(pickle.dumps(memory)) < 100
    assert copy.buffers("x", np.dtype("f4"), (1000, 3)) is not buffers


def test_a_piece_that_is_kept_is_not_written_over():
    shuffle = Shuffle(num_rows=N, slab_rows=50, slabs_per_window=2, seed=1)
    kept = [
        task() for task in WindowReader(read_into, COLUMNS, Memory()).shuffled(shuffle, [range(N)])
    ]

    assert sorted(np.concatenate([piece["label"] for piece in kept])) == list(range(N))
