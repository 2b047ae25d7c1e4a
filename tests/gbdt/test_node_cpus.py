"""Ranks compute with the CPUs that their node has for each of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import RunConfig, ScalingConfig
from hpctrain.data import from_numpy
from hpctrain.gbdt.node_cpus import count_threads
from hpctrain.testing.thread_comm import run_on_threads
from tests.worlds import world_on


def threads(
    asked: int, nodes: list[int], cpus: set[int], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    def rank(comm: Any) -> int:
        return count_threads(asked, world_on(nodes, comm), comm)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus)
    return list(run_on_threads(len(nodes), rank))


def test_a_rank_has_no_more_threads_than_its_node_has_cpus_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert threads(2, [0, 0], {0, 1}, monkeypatch) == [1, 1]
    assert threads(2, [0, 0], {0, 1, 2, 3}, monkeypatch) == [2, 2]
    assert threads(2, [0, 0, 1], {0, 1}, monkeypatch) == [1, 1, 2]
    assert threads(4, [0, 0, 0], {0, 1}, monkeypatch) == [1, 1, 1]
    assert threads(1, [0], {0, 1, 2}, monkeypatch) == [1]


@pytest.mark.parametrize(("params", "expected"), [({}, None), ({"nthread": 3}, 3)])
def test_lightgbm_is_given_them_unless_it_is_told_how_many(
    tmp_path: Path, params: dict[str, Any], expected: int | None
) -> None:
    pytest.importorskip("lightgbm")
    from hpctrain.lightgbm import LightGBMTrainer

    x = np.arange(100.0)
    result = LightGBMTrainer(
        datasets={"train": from_numpy({"x": x, "y": x})},
        label_column="y",
        params={"objective": "regression", **params},
        num_boost_round=1,
        scaling_config=ScalingConfig(num_workers=0, resources_per_worker={"CPU": 500}),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0),
    ).fit()
    assert result.checkpoint is not None
    model = LightGBMTrainer.get_model(result.checkpoint).model_to_string()
    count = expected or len(os.sched_getaffinity(0))
    assert f"[num_threads: {count}]" in model
