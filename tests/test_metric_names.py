from __future__ import annotations

from typing import Any

import pytest

from hpctrain.metric_names import explain_unknown, find_metric, find_score, flatten, has_metric


@pytest.mark.parametrize(
    ("metrics", "name", "found"),
    [
        ({"loss": 1}, "loss", 1),
        ({"val/loss": 1, "val": {"loss": 2}}, "val/loss", 1),
        ({"val": {"loss": 2}}, "val/loss", 2),
        ({"a": {"b/c": 3}}, "a/b/c", 3),
        ({"a/b": {"c": 4}}, "a/b/c", 4),
        ({"a": {"b": 1}, "a/b": {"c": 5}}, "a/b/c", 5),
        ({"/loss": 6}, "/loss", 6),
        ({"": {"loss": 7}}, "/loss", 7),
        ({"val": 1.0}, "val/loss", None),
        ({"val": {"loss": None}}, "val/loss", None),
        ({}, "val/loss", None),
    ],
)
def test_the_name_as_it_is_comes_before_the_path(metrics: Any, name: str, found: Any):
    assert find_metric(metrics, name) == found


def test_a_metric_without_a_value_is_there():
    assert has_metric({"val": {"loss": None}}, "val/loss")
    assert not has_metric({"val": {}}, "val/loss")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None, "high", {}])
def test_what_is_no_finite_number_is_no_score(value: Any):
    assert find_score({"loss": value}, "loss") is None


def test_numbers_of_any_size_are_scores():
    assert find_score({"loss": 10**400}, "loss") == 10**400


def test_names_are_those_that_can_be_looked_up():
    metrics = {"a": 1, "b/c": 2, "d": {"e": {"f": 3}, "g": None}}
    assert flatten(metrics) == {"a": 1, "b/c": 2, "d/e/f": 3, "d/g": None}
    assert all(has_metric(metrics, name) for name in flatten(metrics))


def test_of_two_values_of_one_name_that_of_the_lookup_is_listed():
    for metrics in ({"d": {"e": 1}, "d/e": 2}, {"d/e": 2, "d": {"e": 1}}):
        assert flatten(metrics) == {"d/e": 2} == {"d/e": find_metric(metrics, "d/e")}


def test_a_key_that_is_no_text_is_listed_with_its_value():
    assert flatten({1: {2: "x"}}) == {"1/2": "x"}


def test_the_last_part_of_a_name_is_a_hint_too():
    assert explain_unknown("f1", ["validation/f1", "loss"]).endswith("mean 'validation/f1'?")
    assert explain_unknown("f1", []) == "There are no metrics."
    assert explain_unknown("zz", map(str, range(99))).endswith("and 87 others.")


def test_the_list_of_names_is_one_line():
    known = ["val/loss", "train\nloss", "é %s"]
    message = "The metrics are 'train\\nloss', val/loss, é %s. Did you mean 'val/loss'?"
    assert explain_unknown("val/los", known) == message
