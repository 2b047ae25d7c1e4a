"""Equal weights are equal however they were pickled, and the last bit counts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.testing.chaos.content import holds_the_same


def pickled(path: Path, value: Any) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


def test_pickles_that_differ_in_shared_strings_only_are_the_same(tmp_path: Path) -> None:
    shared = "-".join(["exp", "avg"])
    again = "-".join(["exp", "avg"])
    one = pickled(tmp_path / "a.pkl", [shared, shared])
    other = pickled(tmp_path / "b.pkl", [shared, again])
    assert one.read_bytes() != other.read_bytes(), "or the test shows nothing"
    assert holds_the_same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"loss": 0.1}, {"loss": 0.1 + 1e-17 + 1e-16}),
        ([0.0], [-0.0]),
        (np.zeros(3), np.array([0.0, 0.0, 5e-324])),
        (np.zeros(3, dtype="f4"), np.zeros(3, dtype="f8")),
        ({"a": 1}, {"a": 1, "b": 2}),
        ((1, 2), [1, 2]),
    ],
)
def test_the_least_difference_counts(tmp_path: Path, one: Any, other: Any) -> None:
    first, second = pickled(tmp_path / "a.pkl", one), pickled(tmp_path / "b.pkl", other)
    assert not holds_the_same(first, second)
    assert holds_the_same(first, first)


def test_files_of_torch_are_compared_by_their_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weights = torch.ones(4, dtype=torch.bfloat16)
    changed = weights.clone()
    changed[2] += 0.0078125
    for name, tensor in (("a", weights), ("b", changed)):
        torch.save({"model": {"w": tensor}, "step": 3}, tmp_path / f"{name}.pt")
    # The name of the file is inside it.
    torch.save({"model": {"w": weights.clone()}, "step": 3}, tmp_path / "c.pt")

    assert holds_the_same(tmp_path / "a.pt", tmp_path / "c.pt")
    assert not holds_the_same(tmp_path / "a.pt", tmp_path / "b.pt")


def test_what_is_neither_equal_nor_a_pickle_differs(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    (tmp_path / "b").write_bytes(b"weighty")
    assert not holds_the_same(tmp_path / "a", tmp_path / "b")
