"""A fault came about once somebody has brought it about."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpctrain.testing.chaos import injector as injecting
from hpctrain.testing.chaos.fault import Fault, Point
from hpctrain.testing.chaos.injector import ANNOUNCE, Injector
from hpctrain.testing.chaos.trial import Script, Trial

POINT = Point(role="rank-0", op="report", path="report-1", moment="before")


def pass_by(folder: Path, *, act: str) -> Trial:
    """Return a trial of which a process has come by its only fault, which is not answered."""
    fault = Fault(kind="kill-node", point=POINT, act=act, errno=5)
    trial = Trial(folder, script=Script(path=folder / "train.py", cwd=folder), faults=[fault])
    trial._prepare()
    try:
        Injector(str(folder)).pass_by("report", "report-1", "before", role="rank-0")
    except OSError:
        assert act == "error"
    return trial


@pytest.fixture(autouse=True)
def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injecting, "_ANNOUNCE_PATIENCE_S", 0.0)


def test_an_announced_fault_that_nobody_brings_about_is_a_trouble(tmp_path: Path) -> None:
    trial = pass_by(tmp_path, act=ANNOUNCE)
    assert not trial._came_about(0)
    assert trial._unanswered() == [f"not brought about: kill-node: {POINT}"]


def test_an_announced_fault_came_about_once_it_is_answered(tmp_path: Path) -> None:
    trial = pass_by(tmp_path, act=ANNOUNCE)
    os.mkdir(tmp_path / "answered/0")
    assert trial._came_about(0)


def test_what_a_process_does_to_itself_needs_no_answer(tmp_path: Path) -> None:
    trial = pass_by(tmp_path, act="error")
    assert trial._came_about(0)
    assert trial._unanswered() == []
