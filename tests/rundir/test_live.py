from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpctrain.rundir.live import Live, NodeUse, decode_live, encode_live, make_use, read_live
from hpctrain.rundir.paths import RunPaths

LIVE = Live(
    attempt=2,
    written_at=1_700_000_000.5,
    phases=("training",) * 3 + ("checkpoint",),
    reports=(7, 7, 6, 7),
    idle_s=(0, 0, 31, 1),
    node_ranks=(0, 0, 1, 1),
    nodes=("n1", "n2"),
    uses=(NodeUse(cpus=8, cpu=7.5, memory=10, memory_limit=20, gpus=((5, 1, 2),)), NodeUse()),
)


def content() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(encode_live(LIVE))
    return loaded


def test_what_is_written_is_read(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.live.write_bytes(encode_live(LIVE))
    assert read_live(paths) == LIVE
    assert (LIVE.node_of(1), LIVE.node_of(2)) == ("n1", "n2")


def test_equal_ranks_are_one_entry() -> None:
    assert content()["phases"] == [["training", 3], ["checkpoint", 1]]
    assert content()["reports"] == [[7, 2], [6, 1], [7, 1]]


def test_a_field_that_is_new_is_left_out() -> None:
    assert decode_live({**content(), "colour": ["red"]}) == LIVE


@pytest.mark.parametrize("name", ["cpus", "cpu", "memory", "memory_limit", "gpus"])
def test_the_figures_of_nodes_may_be_missing_or_damaged(name: str) -> None:
    whole = content()
    for column in (None, "x", [1], [-1, {}], [True, [[1]]], [float("nan"), 1e300]):
        live = decode_live({**whole, name: column})
        assert live is not None
        assert getattr(live.uses[1], name) == getattr(NodeUse(), name)
    del whole[name]
    assert decode_live(whole) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": None},
        {"attempt": "1"},
        {"written_at": -1},
        {"written_at": "now"},
        {"phases": None},
        {"phases": [["training", 4, 1]]},
        {"phases": [["training", -1]]},
        {"phases": [["training", 3]]},
        {"phases": [[5, 4]]},
        {"reports": [[1, 10**12]]},
        {"reports": [[True, 4]]},
        {"idle_s": [[-1, 4]]},
        {"node_ranks": [[2, 4]]},
        {"node_ranks": [[0, 3]]},
        {"nodes": ["n1", 2]},
        {"nodes": "n1"},
    ],
)
def test_what_is_damaged_or_newer_is_not_known(change: dict[str, Any]) -> None:
    assert decode_live({**content(), **change}) is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(encode_live(LIVE)[:-7]),
        lambda path: path.write_bytes(b"[" * 10**5),
        lambda path: path.write_bytes(b"\xff\x00" * 100),
    ],
)
def test_a_file_that_is_none_is_not_known(tmp_path: Path, make: Any) -> None:
    make(RunPaths(tmp_path).live)
    assert read_live(RunPaths(tmp_path)) is None


def test_what_a_node_sends_is_taken_as_far_as_it_is_right() -> None:
    assert make_use({"cpus": 4, "cpu": "x", "gpus": [[1, 2, None]], "more": 1}) == NodeUse(
        cpus=4, gpus=((1, 2, None),)
    )
    assert make_use({"gpus": [[1, 2]]}) == make_use({}) == NodeUse()
