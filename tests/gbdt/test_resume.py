"""What features become where boosting goes on with a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpctrain.errors import ConfigError
from hpctrain.gbdt.features import Features
from hpctrain.gbdt.resume import continued


def test_known_values_keep_their_codes_and_features_their_order(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def example(chosen: np.random.Generator) -> None:
        columns = [f"c{number}" for number in range(chosen.integers(1, 6))]
        values = ["a", "b", "c", 1, 2, "x y"]

        def features() -> Features:
            return Features(
                names=tuple(chosen.permutation(columns).tolist()),
                categories={
                    name: tuple(values[i] for i in chosen.permutation(6)[: int(chosen.integers(7))])
                    for name in columns[1:]
                },
            )

        known, found = features(), features()
        both = continued(known, found)
        assert both.names == known.names
        assert set(both.categories) == set(columns[1:])
        for name, before in known.categories.items():
            after = both.categories[name]
            assert after[: len(before)] == before
            assert len(after) == len(set(after))
            assert set(after) == {*before, *found.categories[name]}

    each_example(example)


@pytest.mark.parametrize(
    ("known", "found", "complaint"),
    [
        (("a",), ("a", "b"), r"has 1 features, the datasets have 2; these differ: \['b'\]"),
        (("a", "b"), ("a", "c"), r"these differ: \['b', 'c'\]"),
    ],
)
def test_other_features_are_refused(
    known: tuple[str, ...], found: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        continued(Features(names=known), Features(names=found))


def test_a_column_that_was_no_category_is_refused_as_one_and_the_other_way_round() -> None:
    plain, named = Features(names=("a",)), Features(names=("a",), categories={"a": ("x",)})
    with pytest.raises(ConfigError, match="'a' has categories in the datasets, but not in the che"):
        continued(plain, named)
    with pytest.raises(ConfigError, match="'a' has categories in the checkpoint, but not in the d"):
        continued(named, plain)


def test_names_that_a_library_has_changed_are_those_of_the_datasets() -> None:
    found = Features(names=("mean size", "age"))
    assert continued(Features(names=("age", "mean_size")), found).names == ("age", "mean size")
    assert continued(Features(names=("Column_0", "Column_1")), found).names == found.names
    assert continued(Features(names=("f0", "f1")), found).names == found.names
    with pytest.raises(ConfigError, match="has 1 features, the datasets have 2"):
        continued(Features(names=("f0",)), found)


def test_names_that_differ_by_a_blank_only_are_told_apart() -> None:
    found = Features(names=("a b", "a_b"))
    assert continued(Features(names=("a_b", "a b")), found).names == ("a_b", "a b")
