"""Each kind of trainer is a trial, with what the space chooses of its own parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hpctrain
import hpctrain.data
from hpctrain import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, tune
from hpctrain.base_trainer import BaseTrainer
from hpctrain.metric_names import find_score


def table() -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=(300, 3))
    return pd.DataFrame(x, columns=list("abc")).assign(y=(x[:, 0] + x[:, 1] > 0).astype(int))


def make_xgboost() -> BaseTrainer:
    from hpctrain.xgboost import XGBoostTrainer

    return XGBoostTrainer(
        datasets={"train": hpctrain.data.from_pandas(table())},
        label_column="y",
        params={"objective": "binary:logistic", "eval_metric": "logloss"},
        num_boost_round=4,
        scaling_config=ScalingConfig(num_workers=1),
    )


def make_lightgbm() -> BaseTrainer:
    from hpctrain.lightgbm import LightGBMTrainer

    return LightGBMTrainer(
        datasets={"train": hpctrain.data.from_pandas(table())},
        label_column="y",
        params={"objective": "binary", "metric": "binary_logloss", "min_data_in_leaf": 5},
        num_boost_round=4,
        scaling_config=ScalingConfig(num_workers=1),
    )


def make_sklearn() -> BaseTrainer:
    from sklearn.tree import DecisionTreeClassifier

    from hpctrain.sklearn import SklearnTrainer

    return SklearnTrainer(
        estimator=DecisionTreeClassifier(random_state=0),
        datasets={"train": hpctrain.data.from_pandas(table())},
        label_column="y",
        cv=3,
    )


def _train_jax(config: Mapping[str, Any]) -> None:
    import jax.numpy as jnp

    hpctrain.report({"loss": float(jnp.square(config["x"]))})


def make_jax() -> BaseTrainer:
    from hpctrain.jax import JaxTrainer

    return JaxTrainer(_train_jax, scaling_config=ScalingConfig(num_workers=1))


def _train_horovod(config: Mapping[str, Any]) -> None:
    import horovod.torch as hvd
    import torch

    hvd.init()
    total = hvd.allreduce(torch.tensor(float(config["x"])), op=hvd.Sum)
    hpctrain.report({"loss": float(total)})


def make_horovod() -> BaseTrainer:
    from hpctrain.horovod import HorovodTrainer

    return HorovodTrainer(_train_horovod, scaling_config=ScalingConfig(num_workers=2))


def configure_lightning(rate: Any) -> Any:
    pl = pytest.importorskip("lightning.pytorch")
    import torch

    from hpctrain.lightning import LightningConfigBuilder

    # It travels by value, as that of a script.
    class Net(pl.LightningModule):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.rate = rate
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Any) -> Any:
            loss = (self.weight - batch["y"].mean()).square()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.rate)

    builder = LightningConfigBuilder().module(cls=Net, rate=rate)
    return builder.trainer(max_epochs=2, enable_progress_bar=False, logger=False).build()


def make_lightning() -> BaseTrainer:
    from hpctrain.lightning import LightningTrainer

    return LightningTrainer(
        configure_lightning(0.5),
        datasets={"train": hpctrain.data.from_numpy({"y": np.ones(8, dtype="f4")})},
        datasets_iter_config={"batch_size": 4},
        scaling_config=ScalingConfig(num_workers=1),
    )


def _train_accelerate(config: Mapping[str, Any]) -> None:
    import torch
    from accelerate import Accelerator

    total = Accelerator().reduce(torch.tensor(float(config["x"])), reduction="sum")
    hpctrain.report({"loss": float(total)})


def make_accelerate() -> BaseTrainer:
    pytest.importorskip("accelerate")
    from hpctrain.huggingface import AccelerateTrainer

    return AccelerateTrainer(_train_accelerate, scaling_config=ScalingConfig(num_workers=2))


def _make_transformers(train_dataset: Any, eval_dataset: Any, rate: float) -> Any:
    import torch
    from transformers import Trainer, TrainingArguments

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, labels: Any) -> dict[str, Any]:
            return {"loss": (self.weight - labels.float().mean()).square()}

    net = Net()
    arguments = TrainingArguments(
        output_dir="unused",
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    return Trainer(net, arguments, train_dataset=train_dataset, optimizers=(optimizer, None))


def make_transformers() -> BaseTrainer:
    pytest.importorskip("transformers")
    from hpctrain.huggingface import TransformersTrainer

    return TransformersTrainer(
        _make_transformers,
        trainer_init_config={"rate": 0.1},
        datasets={"train": [{"labels": 1} for _ in range(8)]},
        scaling_config=ScalingConfig(num_workers=1),
    )


DEPTHS = {"params": {"max_depth": tune.grid_search([1, 3])}}
XS = {"train_loop_config": {"x": tune.grid_search([3.0, 1.0])}}
RATES = {"trainer_init_config": {"rate": tune.grid_search([0.0, 0.4])}}


def lightning_space() -> dict[str, Any]:
    return {"lightning_config": configure_lightning(tune.grid_search([0.0, 0.4]))}


Space = dict[str, Any] | Callable[[], dict[str, Any]]
CASES: dict[str, tuple[Callable[[], BaseTrainer], Space, str, str, int]] = {
    "xgboost": (make_xgboost, DEPTHS, "train-logloss", "min", 1),
    "lightgbm": (make_lightgbm, DEPTHS, "train-binary_logloss", "min", 1),
    "sklearn": (
        make_sklearn,
        {"params": {"max_depth": tune.grid_search([1, 3])}},
        "cv/test_score_mean",
        "max",
        1,
    ),
    "jax": (make_jax, XS, "loss", "min", 1),
    "horovod": (make_horovod, XS, "loss", "min", 1),
    "lightning": (make_lightning, lightning_space, "loss", "min", 1),
    "accelerate": (make_accelerate, XS, "loss", "min", 1),
    "transformers": (make_transformers, RATES, "loss", "min", 1),
}


# Lightning has an opinion about data sets as small as these.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_trainer_is_tuned(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make, space, metric, mode, best = CASES[name]
    results = tune.Tuner(
        make(),
        param_space=space() if callable(space) else space,
        tune_config=tune.TuneConfig(metric=metric, mode=mode),
        run_config=RunConfig(name=name, storage_path=str(tmp_path), verbose=1),
    ).fit()
    assert not results.errors
    scores = [find_score(result.metrics, metric) for result in results]
    values = [score for score in scores if score is not None]
    assert len(set(values)) == len(scores) == 2
    found = results.get_best_result()
    assert find_score(found.metrics, metric) == (min if mode == "min" else max)(values)
    assert found.path == results[best].path
    assert "changed" not in capfd.readouterr().err


def test_settings_of_the_trainer_that_those_of_the_tuner_replace_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def said(**of_tuner: Any) -> str:
        tune.Tuner(trainer, run_config=RunConfig(**of_tuner))
        return capsys.readouterr().err

    retries = FailureConfig(max_failures=3)
    of_trainer = RunConfig(name="own", stop={"loss": 0.1}, failure_config=retries)
    trainer = DataParallelTrainer(print, run_config=of_trainer)
    tune.Tuner(trainer)
    assert not capsys.readouterr().err
    assert "it lacks name, failure_config, stop: " in said(verbose=0)
    assert "it lacks stop: " in said(name="sweep", failure_config=retries)
    assert not said(name="sweep", failure_config=FailureConfig(max_failures=1), stop={"loss": 1})
    assert not said(name="sweep", failure_config=retries, stop={"loss": 0.1}, verbose=0)
