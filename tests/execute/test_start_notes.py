"""What the ledger and the log have on how ranks got to their modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from hpctrain.execute.node_answers import Brought
from hpctrain.execute.rank_forks import left_out
from hpctrain.execute.start_notes import StartNotes

EVERYWHERE = Brought(
    nodes=("a1", "a2", "b"),
    by="sbcast",
    reading=(),
    why="",
    alone={},
    unmounted={},
    seconds=1.23456,
)


class Ledger(list[dict[str, Any]]):
    def note(self, event: str, **details: Any) -> None:
        self.append({"event": event, **details})


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def make_notes(ledger: Ledger, *, is_verbose: bool = True) -> StartNotes:
    pack: Any = Mock(path="/packs/env", sha256="12ab")
    return StartNotes(ledger.note, pack=pack, is_verbose=is_verbose)


def test_a_pack_that_came_to_all_nodes_is_written_down_and_not_logged(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    make_notes(ledger).take_brought(EVERYWHERE)
    assert ledger == [
        {
            "event": "environment-unpacked",
            "nodes": ["a1", "a2", "b"],
            "by": "sbcast",
            "reading": [],
            "reason": "",
            "alone": {},
            "unmounted": {},
            "seconds": 1.235,
            "sha256": "12ab",
        }
    ]
    assert capsys.readouterr().err == ""


def test_what_sbcast_could_not_copy_and_nodes_could_not_mount_is_logged(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    brought = Brought(
        nodes=("a1", "a2", "b"),
        by="read",
        reading=("a1", "a2", "b"),
        why="no space",
        alone={},
        unmounted={"a1": "no fuse", "a2": "no fuse"},
        seconds=1.0,
    )
    make_notes(ledger).take_brought(brought)
    assert ledger[0]["unmounted"] == {"a1": "no fuse", "a2": "no fuse"}
    assert capsys.readouterr().err.splitlines() == [
        "hpctrain: note: sbcast could not copy /packs/env to the nodes, so each of them read it: "
        "no space",
        "hpctrain: note: a[1-2] cannot mount /packs/env, and unpacked it: no fuse",
    ]


def test_that_nodes_got_it_from_one_another_and_which_did_not_is_logged(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    brought = replace(
        EVERYWHERE, by="tree", reading=("a1", "b"), why="not here", alone={"b": "no python3"}
    )
    make_notes(ledger).take_brought(brought)
    assert ledger[0]["alone"] == {"b": "no python3"}
    assert capsys.readouterr().err.splitlines() == [
        "hpctrain: note: sbcast could not copy /packs/env to the nodes, so they got it from one "
        "another: not here",
        "hpctrain: note: b got /packs/env from no other node, and read it: no python3",
    ]


@pytest.mark.parametrize("is_verbose", [True, False])
def test_each_reason_why_ranks_are_not_forked_is_written_down_once(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], is_verbose: bool
) -> None:
    notes = make_notes(ledger, is_verbose=is_verbose)
    for reasons in (["a thread"], [], ["a thread", "a GPU"]):
        notes.take_not_forked(reasons)
    assert ledger == [
        {"event": "not-forked", "reason": "a thread"},
        {"event": "not-forked", "reason": "a GPU"},
    ]
    assert len(capsys.readouterr().err.splitlines()) == 2 * is_verbose


def test_modules_that_a_fork_server_leaves_out_are_named_once(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = left_out(["torch._dynamo", "wave"], "the import of wave starts a thread")
    notes = make_notes(ledger)
    for _ in range(2):
        notes.take_not_forked([reason])
    assert ledger == [{"event": "not-preloaded", "reason": reason}]
    assert capsys.readouterr().err.splitlines() == [
        "hpctrain: note: the fork server leaves out torch._dynamo, wave: the import of wave starts "
        "a thread"
    ]
