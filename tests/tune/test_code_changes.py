"""What a sweep says of the code of its trials."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig
from hpctrain.base_trainer import BaseTrainer
from hpctrain.launch.digests import FUNCTION
from hpctrain.launch.fit import prepare
from hpctrain.launch.request import Submission
from hpctrain.tune.code_changes import CodeChanges
from hpctrain.tune.trainable import Trainable, make_trial_trainer
from hpctrain.tune.trial import Trial, name_trial


def prepared(root: Path, trainable: Trainable, trial: Trial) -> Submission:
    run_config = RunConfig(name=trial.trial_id, storage_path=root)
    trainer = make_trial_trainer(trainable, trial.config, run_config)
    return prepare(trainer._request().named(), "local")


@pytest.fixture
def said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what is said of the second trial once the first has begun."""

    def compare(
        before: Trainable, config: dict[str, Any], now: Trainable, other: dict[str, Any]
    ) -> str:
        first = Trial(trial_id=name_trial(0), config=config)
        spec = prepared(tmp_path, before, first).spec
        (tmp_path / first.trial_id).mkdir()
        plan = {"digests": dict(spec.digests), "modules": dict(spec.modules)}
        (tmp_path / first.trial_id / "plan.json").write_text(json.dumps(plan))
        second = Trial(trial_id=name_trial(1), config=other)
        changes = CodeChanges(lambda trial_id: tmp_path / trial_id)
        changes.show(second, prepared(tmp_path, now, second))
        return capsys.readouterr().err

    return compare


class OwnLoop(BaseTrainer):
    """A trainer with a loop of its own and arguments of its own, as those of trees have."""

    def __init__(self, *, params: dict[str, Any], run_config: RunConfig | None = None) -> None:
        super().__init__(scaling_config=ScalingConfig(), run_config=run_config)
        self.params = params

    def training_loop(self) -> None:
        """Never runs."""


def test_arguments_of_a_trainer_with_a_loop_of_its_own_are_no_code(
    said: Callable[..., str],
) -> None:
    trainer = OwnLoop(params={"max_depth": 1})
    assert not said(trainer, {"params": {"max_depth": 1}}, trainer, {"params": {"max_depth": 3}})


def test_the_params_of_a_tree_trainer_are_no_code(said: Callable[..., str]) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("xgboost")
    import hpctrain.data
    from hpctrain.xgboost import XGBoostTrainer

    trainer = XGBoostTrainer(
        datasets={"train": hpctrain.data.from_pandas(pandas.DataFrame({"x": [0.0], "y": [1]}))},
        label_column="y",
        params={"objective": "binary:logistic"},
    )
    assert not said(trainer, {"params": {"max_depth": 1}}, trainer, {"params": {"max_depth": 3}})


@pytest.mark.parametrize("wrap", [lambda function: function, DataParallelTrainer])
def test_another_function_is_other_code_whatever_the_configuration(
    said: Callable[..., str], wrap: Callable[[Any], Trainable]
) -> None:
    def make(number: int) -> Any:
        return lambda config=None: number

    key = "params" if wrap is not DataParallelTrainer else "train_loop_config"
    changed = said(wrap(make(1)), {key: {"x": 1}}, wrap(make(2)), {key: {"x": 2}})
    assert f"the code has changed since the sweep began: {FUNCTION}." in changed
