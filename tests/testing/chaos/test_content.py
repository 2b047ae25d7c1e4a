"""Equal weights are equal however they were pickled, and the last bit counts."""

from __future__ import annotations

import array
import io
import pickle
import random
from collections import OrderedDict, deque
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


class Weights:
    """Has its state outside of its attributes, as an extension class has."""

    __slots__ = ("_content",)

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> Any:
        return Weights, (self._content,)


class Tags(set):
    pass


def with_other_bytes(path: Path) -> Path:
    """Return a copy of a pickle, of another protocol."""
    copy = path.with_name(f"{path.name}-copy")
    copy.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()), protocol=2))
    assert copy.read_bytes() != path.read_bytes()
    return copy


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"loss": 0.1}, {"loss": 0.1 + 1e-17 + 1e-16}),
        ([0.0], [-0.0]),
        (np.zeros(3), np.array([0.0, 0.0, 5e-324])),
        (np.zeros(3, dtype="f4"), np.zeros(3, dtype="f8")),
        ({"a": 1}, {"a": 1, "b": 2}),
        ((1, 2), [1, 2]),
        (Weights(b"1"), Weights(b"2")),
        (random.Random(1), random.Random(2)),
        (Tags("a"), Tags("b")),
        (deque([1]), deque([2])),
        (OrderedDict(a=1), OrderedDict(a=2)),
        (io.BytesIO(b"1"), io.BytesIO(b"2")),
        (np.array([[1], None], dtype=object), np.array([[2], None], dtype=object)),
        (array.array("d", [0.0]), array.array("d", [-0.0])),
    ],
)
def test_the_least_difference_counts(tmp_path: Path, one: Any, other: Any) -> None:
    first, second = pickled(tmp_path / "a.pkl", one), pickled(tmp_path / "b.pkl", other)
    assert not holds_the_same(first, second)
    assert holds_the_same(first, with_other_bytes(first))


def test_an_object_that_contains_itself_is_compared(tmp_path: Path) -> None:
    files = []
    for name, last in (("a", 1), ("b", 1), ("c", 2)):
        ring: list[Any] = ["".join(["mo", "del"]), "".join(["mo", "del"])]
        ring += [ring, last]
        files.append(pickled(tmp_path / name, ring))
    assert holds_the_same(files[0], with_other_bytes(files[1]))
    assert not holds_the_same(files[0], files[2])


def test_models_of_xgboost_are_compared_by_their_trees(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    rows = np.arange(40.0).reshape(20, 2)
    matrix = xgboost.DMatrix(rows, label=rows[:, 0] > 20)
    parameters = {"objective": "binary:logistic", "nthread": 1}
    three, four = (
        pickled(tmp_path / str(rounds), xgboost.train(parameters, matrix, rounds))
        for rounds in (3, 4)
    )
    assert not holds_the_same(three, four)
    assert holds_the_same(three, with_other_bytes(three))


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
