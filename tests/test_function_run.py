"""A function on every rank: what a trainer, a batch prediction and a server are alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import BaseTrainer, ConfigError, RunConfig, ScalingConfig
from hpctrain.backend import BackendConfig
from hpctrain.config import CheckpointConfig
from hpctrain.function_run import FunctionRun
from hpctrain.plan.spec import WorkerSpec
from hpctrain.predict.batch_predictor import BatchPrediction
from hpctrain.serve.server import Serving


class Doubling(FunctionRun):
    """Reports the double of a number."""

    def __init__(self, number: int, *, run_config: RunConfig) -> None:
        super().__init__(scaling_config=ScalingConfig(num_workers=0), run_config=run_config)
        self.number = number

    def _make_worker_spec(self) -> WorkerSpec:
        def double(config: dict[str, Any]) -> None:
            hpctrain.report({"double": 2 * config["number"]})

        return WorkerSpec(
            train_loop=double,
            train_loop_config={"number": self.number},
            takes_config=True,
            backend_config=BackendConfig(),
        )


def test_a_function_runs_on_the_ranks_and_the_plan_names_whose_it_is(tmp_path: Path) -> None:
    run = Doubling(21, run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0))
    assert repr(run) == "Doubling(num_workers=0)"
    assert run.fit().metrics == {"double": 42}
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["trainer"].endswith("test_function_run.Doubling")


@pytest.mark.parametrize("begin", ["fit", "submit"])
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path, begin: str) -> None:
    often = CheckpointConfig(checkpoint_frequency=2)
    run = Doubling(1, run_config=RunConfig(storage_path=tmp_path, checkpoint_config=often))
    with pytest.raises(ConfigError, match="is for trainers that have the loop"):
        getattr(run, begin)()
    with pytest.raises(ConfigError, match="run_config='here' is of type str; type RunConfig is"):
        Doubling(1, run_config="here")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_run_that_trains_nothing_is_no_trainer() -> None:
    for kind in (BatchPrediction, Serving):
        assert issubclass(kind, FunctionRun)
        assert not issubclass(kind, BaseTrainer)


def test_a_trainer_with_a_loop_of_its_own_is_submitted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    # In here, so that its pickle holds it whole.
    class Once(BaseTrainer):
        def training_loop(self) -> None:
            hpctrain.report({"trained": True})

    config = RunConfig(storage_path=tmp_path, name="run", verbose=0)
    handle = Once(run_config=config).submit()
    assert handle.result(timeout_s=120).metrics == {"trained": True}


class Helped(BaseTrainer):
    """Has helpers that are called as a base class might call its own."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._prepare = self._run = self._worker_spec = None

    def training_loop(self) -> None:
        hpctrain.report({"trained": True})


def test_a_subclass_may_use_the_names_of_helpers_that_are_common(tmp_path: Path) -> None:
    config = RunConfig(name="run", storage_path=str(tmp_path), verbose=0)
    trainer = Helped(scaling_config=ScalingConfig(num_workers=0), run_config=config)
    assert trainer.fit().metrics == {"trained": True}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_config_that_holds_itself_is_refused_by_its_key(tmp_path: Path, num_workers: int) -> None:
    itself: dict[str, Any] = {"lr": 0.1}
    itself["again"] = [itself]
    trainer = hpctrain.DataParallelTrainer(
        lambda config: None,
        train_loop_config=itself,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0, launcher="local"),
    )
    with pytest.raises(ConfigError, match=r"train_loop_config holds itself.* at again/0/again/0/"):
        trainer.fit()
    assert not (tmp_path / "run").exists()
