"""The checks of all datasets before training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

pytest.importorskip("xgboost")

from hpctrain import ConfigError, DataConfig, Result, RunConfig, ScalingConfig
from hpctrain.data import from_numpy, from_pandas
from hpctrain.xgboost import XGBoostTrainer


def fit(
    tmp_path: Path, label: str = "y", *, categorical_columns: Sequence[str] = (), **datasets: Any
) -> Result:
    return XGBoostTrainer(
        datasets=datasets,
        label_column=label,
        categorical_columns=categorical_columns,
        params={"nthread": 1},
        num_boost_round=1,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()


def frame(values: Any) -> pandas.DataFrame:
    return pandas.DataFrame({"a": values, "y": np.arange(len(values)) % 2})


TRUTHS = np.array([None, True, False, True], dtype=object)


@pytest.mark.parametrize(
    "valid",
    [
        np.array([True, False]),
        np.array([None, None], dtype=object),
        pandas.array([None, True], dtype="boolean"),
        pandas.array([1, None], dtype="Int64"),
    ],
)
def test_a_column_of_numbers_may_begin_with_a_missing_one(tmp_path: Path, valid: Any) -> None:
    result = fit(tmp_path, train=frame(TRUTHS), valid=frame(valid))
    assert result.metrics["training_iteration"] == 1


def test_a_column_that_is_text_in_one_dataset_only_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'valid' on rank 0 holds text in column 'a', but 'train"):
        fit(tmp_path, train=frame(TRUTHS), valid=frame(np.array([None, "x"], dtype=object)))


def test_a_column_of_lists_of_unlike_lengths_is_named(tmp_path: Path) -> None:
    lists = frame([np.ones(length) for length in (2, 3, 1, 2)])
    for train in (lists, from_pandas(lists)):
        with pytest.raises(ConfigError, match=r"column 'a' holds object, not numbers .*it out"):
            fit(tmp_path, train=train)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([np.ones(2), np.ones(3)], "lists"),
        ([[1], [1, 2]], "lists"),
        ([np.ones(2), np.ones(2)], "numbers of width 2"),
    ],
)
def test_a_column_of_lists_has_no_categories(tmp_path: Path, values: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"categorical_columns has 'a', which holds {what}: "):
        fit(tmp_path, train=frame(values), categorical_columns=["a"])


def test_categories_may_begin_with_a_value_that_pandas_calls_missing(tmp_path: Path) -> None:
    values = np.array([pandas.NA, "x", "y", "x"], dtype=object)
    for train in (frame(values), from_numpy({"a": values, "y": np.arange(4) % 2})):
        result = fit(tmp_path, train=train, categorical_columns=["a"])
        assert result.metrics["training_iteration"] == 1


@pytest.mark.mpi
def test_a_dataset_that_each_rank_has_whole_may_be_small_and_one_group(tmp_path: Path) -> None:
    rows = np.arange(40)
    train = pandas.DataFrame({"a": rows % 7, "y": rows % 2, "group": rows // 5})
    result = XGBoostTrainer(
        datasets={"train": train, "valid": train[:1]},
        label_column="y",
        group_column="group",
        params={"nthread": 1, "objective": "rank:pairwise"},
        num_boost_round=1,
        scaling_config=ScalingConfig(num_workers=2),
        dataset_config=DataConfig(datasets_to_split=["train"]),
        run_config=RunConfig(storage_path=tmp_path, verbose=0, launcher="local"),
    ).fit()
    assert result.metrics["training_iteration"] == 1


def test_the_advice_on_a_label_of_texts_is_one_for_labels(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"column 'a' holds .*LabelEncoder") as caught:
        fit(tmp_path, "a", train=frame(np.array(["x", "y"])))
    assert "categorical_columns" not in str(caught.value)
