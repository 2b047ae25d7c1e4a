"""Each case of training gives what a real Ray answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ray_conformance.train_cases import ANSWERS, CASES, Library

RECORDED = json.loads(ANSWERS.read_text())


@pytest.mark.parametrize("name", CASES)
def test_a_run_gives_what_ray_answers(name: str, tmp_path: Path) -> None:
    answer = CASES[name](Library("hpctrain", "hpctrain.data"), tmp_path)
    assert json.loads(json.dumps(answer)) == RECORDED[name]


def test_there_is_an_answer_for_each_case() -> None:
    assert list(RECORDED) == ["recorded with", *CASES]
