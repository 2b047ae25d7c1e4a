"""The benchmarks of ingest run, and compare the same rows."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from tests.processes import run_python

pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ingest.py"


@pytest.fixture
def hdf5_rows(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import hdf5_rows

    return hdf5_rows


def test_rows_of_ingest_are_measured_and_written_down(tmp_path):
    file = tmp_path / "ingest.json"
    names = ["in-order", "shuffled", "compressed"]
    options = ["--rounds", "1", "--sizes", "50000", "--only", *names, "--json", file]

    run_python(SCRIPT, *options, cwd=tmp_path)
    rows = json.loads(file.read_text())["rows"]
    assert [row["name"] for row in rows] == ["in order", "shuffled", "compressed"]
    for row in rows:
        # So few rows may be read in less time than the kernel can tell it of.
        assert row["others_share"] is None or 0 <= row["others_share"] <= 1
        assert len(row["verdicts"]) == 2
        assert all(sample["wall_s"] > 0 for taken in row["samples"].values() for sample in taken)


def test_what_is_gathered_in_memory_is_what_a_shuffled_epoch_gives(hdf5_rows):
    arguments = Namespace(sizes=[30_000], tree=SCRIPT.parents[1])
    with hdf5_rows.dataset(arguments) as (path, x):
        shard = hdf5_rows.open_shard(arguments, path)
        order = hdf5_rows.order_of(path)
        for _ in range(2):
            batches = [batch["x"] for batch in hdf5_rows.iter_batches(shard, shuffle=True)]

    assert np.array_equal(np.concatenate(batches), x[order])
    assert not np.array_equal(order, np.arange(len(x)))


def test_the_cpu_seconds_of_a_loader_are_for_all_rows_as_its_wall_seconds_are(
    hdf5_rows, monkeypatch
):
    clock = iter(range(10**6))
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(hdf5_rows.time, name, lambda: float(next(clock)))
    monkeypatch.setattr(hdf5_rows, "LOADER_ROWS", 1000)
    arguments = Namespace(sizes=[30_000], tree=SCRIPT.parents[1], rounds=1, say=lambda _: None)
    (measured,) = hdf5_rows.measure_loader(arguments)
    for sample in measured.samples["torch DataLoader"]:
        # Each is two readings of the clock apart.
        assert (sample.wall_s, sample.cpu_s) == (1 * 30, 3 * 30)


def test_slices_of_h5py_are_read_into_the_batch_of_a_dataset_that_is_open(hdf5_rows, monkeypatch):
    opened = []
    real = hdf5_rows.h5py.Group.__getitem__

    def get(group, name):
        opened.append(name)
        return real(group, name)

    monkeypatch.setattr(hdf5_rows.h5py.Group, "__getitem__", get)
    monkeypatch.setattr(hdf5_rows, "run", lambda *_, others, **__: others)
    arguments = Namespace(sizes=[30_000], tree=SCRIPT.parents[1])
    rounds = hdf5_rows.measure_in_order(arguments)
    others = next(rounds)
    opened.clear()
    assert set(others["h5py slices"]()) == {None}
    assert opened == []
    rounds.close()
