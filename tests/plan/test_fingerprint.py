from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from hpctrain.plan.fingerprint import digest_pickle
from hpctrain.plan.spec import make_fingerprint, pack

SCRIPT = '''
import abc
import enum

from hpctrain.plan.spec import make_fingerprint, pack

NAMES = {"alpha", "beta", "gamma", "delta", "epsilon"}
NESTED = {"sets": [frozenset({"p", "q", "r", "s"}), {"one": {"x", "y", "z"}}]}


class Color(enum.Enum):
    RED = 1


class Base(abc.ABC):
    allowed = frozenset({"sum", "mean", "none"})

    @abc.abstractmethod
    def name(self): ...


class Net(Base):
    def __init__(self):
        super().__init__()
        self.color = Color.RED

    def name(self):
        return {"first", "second", "third"} & self.allowed


def countdown(n):
    return countdown(n - 1) if n else 0


def train(config):
    """Train."""
    if config["mode"] in {"one", "two", "three", "four"}:
        return Net(), NAMES, NESTED, countdown(3)

    def inner(scale=(1, 2.5)):
        return config, scale

    return [inner() for _ in range(2)]


print(make_fingerprint(pack(train, what="it")))
'''


def fingerprint(folder: Path, text: str, *, hash_seed: int = 0) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    return subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fingerprint(tmp_path_factory.mktemp("first"), SCRIPT)


@pytest.mark.parametrize("hash_seed", [0, 1, 2])
def test_the_same_script_has_the_same_fingerprint_in_every_process(
    tmp_path: Path, first: str, hash_seed: int
):
    assert fingerprint(tmp_path, SCRIPT, hash_seed=hash_seed) == first


def test_neither_a_comment_nor_another_folder_makes_it_another_script(tmp_path: Path, first: str):
    assert fingerprint(tmp_path / "elsewhere", f"# A comment\n\n{SCRIPT}") == first


def test_a_script_that_is_run_by_another_is_the_same_script(tmp_path: Path, first: str):
    # As by `hpctrain run train.py`.
    (tmp_path / "inner.py").write_text(SCRIPT)
    outer = "import runpy\nrunpy.run_path('inner.py', run_name='__main__')\n"
    assert fingerprint(tmp_path, outer) == first


CHANGES = [
    ('"epsilon"', '"zeta"'),
    ('"z"', '"w"'),
    ("RED = 1", "RED = 2"),
    ('"mean"', '"max"'),
    ("self.color = Color.RED", "self.colour = Color.RED"),
    ("countdown(n - 1)", "countdown(n - 2)"),
    ("countdown(3)", "countdown(4)"),
    ('"four"}', '"five"}'),
    ("2.5", "2.25"),
    ("(Base):", "(Base, object):"),
]


def test_any_change_makes_it_another_script(tmp_path: Path, first: str):
    # One process for all of them: what is slow is its start.
    runner = ["import runpy"]
    for i, (old, new) in enumerate(CHANGES):
        assert old in SCRIPT
        (tmp_path / f"changed{i}.py").write_text(SCRIPT.replace(old, new))
        runner.append(f"runpy.run_path('changed{i}.py', run_name='__main__')")
    fingerprints = [first.strip(), *fingerprint(tmp_path, "\n".join(runner)).split()]
    assert len(set(fingerprints)) == 1 + len(CHANGES)


def test_a_torch_module_counts_by_its_values_and_not_by_its_address():
    torch = pytest.importorskip("torch")

    def model(bias: float):
        layer = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.constant_(layer.bias, bias)
        return layer

    one, same, other = model(1), model(1), model(0)
    assert pack(one, what="it") != pack(same, what="it")
    assert digest_pickle(pack(one, what="it")) == digest_pickle(pack(same, what="it"))
    assert digest_pickle(pack(one, what="it")) != digest_pickle(pack(other, what="it"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        ("1", 1),
        (b"a", "a"),
        ([1, 2], (1, 2)),
        ([1, 2], [2, 1]),
        ([[1], 2], [1, [2]]),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, frozenset([1, 2])),
        (len, max),
    ],
)
def test_different_values_have_different_digests(one, other):
    assert digest_pickle(pickle.dumps(one)) != digest_pickle(pickle.dumps(other))


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_binary_protocol_can_be_followed(protocol: int):
    one = digest_pickle(pickle.dumps([{"a"}, 2**70, None], protocol))
    assert one == digest_pickle(pickle.dumps([{"a"}, 2**70, None], protocol))
    assert one != digest_pickle(pickle.dumps([{"b"}, 2**70, None], protocol))


# Before protocol 4 a set is pickled as a call with a list, and a list has an order.
@pytest.mark.parametrize("protocol", [4, 5])
def test_the_order_of_a_set_does_not_matter(protocol: int):
    one = digest_pickle(pickle.dumps({"b", "a"}, protocol))
    assert one == digest_pickle(pickle.dumps({"a", "b"}, protocol))


def test_a_value_that_is_part_of_itself_has_a_digest():
    def ring(value: int) -> list:
        knot: list = [value]
        knot.append(knot)
        return knot

    assert digest_pickle(pickle.dumps(ring(1))) == digest_pickle(pickle.dumps(ring(1)))
    assert digest_pickle(pickle.dumps(ring(1))) != digest_pickle(pickle.dumps(ring(2)))


def test_whether_equal_parts_are_one_object_does_not_matter():
    shared = ["a"]
    assert digest_pickle(pickle.dumps([shared, shared])) == digest_pickle(
        pickle.dumps([["a"], ["a"]])
    )


def test_bytes_that_are_no_pickle_are_hashed_as_they_are():
    assert digest_pickle(b"not a pickle") != digest_pickle(b"not a pickle either")


def test_parts_of_a_fingerprint_do_not_run_together():
    assert make_fingerprint(b"ab", b"c") != make_fingerprint(b"a", b"bc")


def test_the_values_of_a_large_array_count_and_are_not_copied():
    values = np.arange(2e6)
    content = pickle.dumps({"array": values}, protocol=5)
    assert b"\x96" in content
    tracemalloc.start()
    try:
        digest = digest_pickle(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes / 4
    assert digest == digest_pickle(pickle.dumps({"array": values.copy()}, protocol=5))
    other = values.copy()
    other[-1] = 0
    assert digest != digest_pickle(pickle.dumps({"array": other}, protocol=5))
    # As bytes, where it cannot be followed.
    assert digest_pickle(content[:1000]) == hashlib.sha256(content[:1000]).digest()
