"""Each case gives what a real Ray answered, or what is written here, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hpctrain.data
from tests.ray_conformance.data_cases import CASES, IN_ANY_ORDER, answer, in_order

ANSWERS = json.loads(Path(__file__).with_name("data_answers.json").read_text())

NOT_A_NUMBER = "NaN"
# What is missing among numbers is NaN in every batch, so also in rows: docs/data.rst, "Types".
DIFFERENCES: dict[str, Any] = {
    "items_with_missing_values": [{"a": 1.0, "b": "x"}, {"a": NOT_A_NUMBER, "b": None}],
    "groups_with_missing_values": [
        [{"k": 1, "count()": 2}, {"k": 2, "count()": 1}],
        [{"k": 1, "mean(x)": 1.0}, {"k": 2, "mean(x)": NOT_A_NUMBER}],
    ],
    "column_of_missing_values": [{"a": 1.5, "b": 3.0}, {"a": NOT_A_NUMBER, "b": NOT_A_NUMBER}],
    # A dataset has the same columns in all of its rows.
    "items_with_other_keys": [{"a": 1, "b": None}, {"a": 2, "b": "x"}],
}


@pytest.mark.parametrize("name", CASES)
def test_a_case_gives_what_ray_answers(name: str, tmp_path: Path):
    if name == "images":
        pytest.importorskip("PIL")
    expected = DIFFERENCES.get(name, ANSWERS[name])
    found = json.loads(json.dumps(answer(CASES[name], hpctrain.data, tmp_path)))
    if isinstance(expected, dict) and "raises" in expected:
        # Ours is a ConfigError, which is a ValueError.
        assert "ValueError" in expected["raises"]
        assert found == {"raises": "ConfigError"}
        return
    if name.startswith(IN_ANY_ORDER):
        found, expected = in_order(found), in_order(expected)
    assert found == expected


def test_there_is_an_answer_for_each_case_and_a_case_for_each_answer():
    assert list(ANSWERS) == ["recorded with", *CASES]
    assert set(DIFFERENCES) <= set(CASES)
