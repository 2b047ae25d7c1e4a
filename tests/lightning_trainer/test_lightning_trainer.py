"""`LightningTrainer` in this interpreter: no ranks to wait for."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpctrain import CheckpointConfig, ConfigError, Result, RunConfig, ScalingConfig
from hpctrain.data import from_numpy, read_hdf5
from hpctrain.lightning import LightningConfigBuilder, LightningPredictor, LightningTrainer
from hpctrain.predict import BatchPredictor
from hpctrain.predict.registry import find_predictor

# Lightning has an opinion about data sets as small as these.
pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = 60
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("f4")


def make_net() -> Any:
    import lightning.pytorch as pl

    class Net(pl.LightningModule):
        def __init__(self, width: int = 8) -> None:
            super().__init__()
            self.save_hyperparameters()
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(3, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
            )

        def forward(self, x: Any) -> Any:
            return self.layers(x).squeeze(1)

        def step(self, batch: Any) -> Any:
            return (self(batch["x"]) - batch["y"]).square().mean()

        def training_step(self, batch: Any) -> Any:
            loss = self.step(batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any) -> None:
            self.log("val_loss", self.step(batch), batch_size=len(batch["x"]))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.02)

    return Net


Net = make_net()
DATASETS = {
    "train": from_numpy({"x": X[:45], "y": np.sin(X[:45].sum(1))}),
    "val": from_numpy({"x": X[45:], "y": np.sin(X[45:].sum(1))}),
}


def make_trainer(
    storage: Path, *, epochs: int = 3, name: str = "run", stop: Any = None, **changes: Any
) -> LightningTrainer:
    builder = (
        LightningConfigBuilder()
        .module(cls=Net, width=5)
        .trainer(max_epochs=epochs, enable_progress_bar=False, logger=True)
        .checkpointing(monitor="val_loss", save_top_k=2, report_every_n_steps=1)
    )
    return LightningTrainer(
        builder.build(),
        datasets=DATASETS,
        datasets_iter_config={"batch_size": 9, "shuffle": True},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=storage, name=name, verbose=0, stop=stop),
        **changes,
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return make_trainer(tmp_path_factory.mktemp("runs")).fit()


def losses(result: Result) -> list[tuple[int, float]]:
    return [(metrics["step"], metrics["loss"]) for metrics in result.metrics_history]


def weights(result: Result) -> dict[str, Any]:
    content = torch.load(result.checkpoint.path / "checkpoint.ckpt", weights_only=True)
    return content["state_dict"]


def test_a_module_is_fitted_to_datasets_and_the_best_checkpoints_are_kept(result: Result) -> None:
    assert [step for step, _ in losses(result)] == list(range(1, 16))
    assert result.metrics["epoch"] == 2
    best = [metrics["val_loss"] for _, metrics in result.best_checkpoints]
    assert best[-1] == min(m.get("val_loss", 99.0) for m in result.metrics_history)
    assert 2 <= len(best) <= 3
    # Lightning's own choice: of TensorBoard, where that is installed.
    logged = list((result.path / "artifacts").rglob("events.out.tfevents.*"))
    assert logged or list((result.path / "artifacts").rglob("metrics.csv"))


def test_a_fit_that_was_stopped_within_an_epoch_goes_on_with_the_rows_that_are_left(
    result: Result, tmp_path: Path
) -> None:
    stopped = make_trainer(tmp_path, stop={"step": 7}).fit()
    assert [step for step, _ in losses(stopped)] == [1, 2, 3, 4, 5, 6, 7, 7], "the last one saves"
    resumed = make_trainer(tmp_path, name="more", resume_from_checkpoint=stopped.checkpoint).fit()
    assert losses(resumed) == losses(result)[7:]
    for name, values in weights(result).items():
        assert torch.equal(weights(resumed)[name], values)


@pytest.mark.parametrize("minimum", [{"min_epochs": 3}, {"min_steps": 15}])
def test_a_stop_comes_before_the_minimum_of_the_trainer(
    tmp_path: Path, minimum: dict[str, int]
) -> None:
    seen = str(tmp_path / "seen.json")

    class Observed(Net):
        def on_fit_end(self) -> None:
            import json
            from pathlib import Path

            trainer = self.trainer
            found = [trainer.global_step, trainer.min_epochs, trainer.min_steps]
            Path(seen).write_text(json.dumps(found))

    config = (
        LightningConfigBuilder()
        .module(cls=Observed)
        .trainer(max_epochs=3, enable_progress_bar=False, logger=False, **minimum)
        .build()
    )
    LightningTrainer(
        config,
        datasets=DATASETS,
        datasets_iter_config={"batch_size": 9},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, verbose=0, stop={"step": 5}),
    ).fit()
    found = json.loads(Path(seen).read_text())
    # Steps without epochs are one epoch to Lightning.
    assert found == [5, minimum.get("min_epochs", 1), minimum.get("min_steps")]


class WithSlash(Net):
    """Logs what it measures under a name with a slash."""

    def validation_step(self, batch: Any) -> None:
        self.log("val/loss", self.step(batch), batch_size=len(batch["x"]))


@pytest.mark.parametrize("monitor", ["val/loss", "val/los"])
def test_a_monitor_with_a_slash_keeps_the_best_and_a_misspelt_one_is_refused(
    tmp_path: Path, monitor: str
) -> None:
    builder = (
        LightningConfigBuilder()
        .module(cls=WithSlash, width=5)
        .trainer(max_epochs=3, enable_progress_bar=False, logger=False)
        # The first checkpoints come before a validation: they have no such metric yet.
        .checkpointing(monitor=monitor, save_top_k=1, every_n_train_steps=2)
    )
    trainer = LightningTrainer(
        builder.build(),
        datasets=DATASETS,
        datasets_iter_config={"batch_size": 9},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0),
    )
    if monitor == "val/los":
        with pytest.raises(ConfigError, match=r"report 3 has no metric .* mean 'val/loss'"):
            trainer.fit()
        return
    result = trainer.fit()
    best = min(m.get("val/loss", 99.0) for m in result.metrics_history)
    assert result.best_checkpoints[-1][1]["val/loss"] == best


def test_a_run_is_restored_without_its_script(tmp_path: Path, result: Result) -> None:
    make_trainer(tmp_path).fit()
    restored = LightningTrainer.restore(tmp_path / "run")
    assert isinstance(restored, LightningTrainer)
    assert losses(restored.fit()) == losses(result)
    with pytest.raises(ConfigError, match="it has no training function"):
        LightningTrainer.restore(tmp_path / "run", print)


@pytest.mark.parametrize("says_it_twice", [False, True])
def test_a_callback_of_the_scripts_own_is_the_one_that_reports(
    tmp_path: Path, says_it_twice: bool
) -> None:
    from hpctrain.lightning import ReportCallback

    builder = LightningConfigBuilder().module(cls=Net)
    builder.trainer(max_epochs=2, enable_progress_bar=False, callbacks=ReportCallback())
    trainer = LightningTrainer(
        (builder.checkpointing() if says_it_twice else builder).build(),
        datasets=DATASETS,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    )
    if says_it_twice:
        with pytest.raises(ConfigError, match="both say when checkpoints are saved"):
            trainer.fit()
    else:
        assert [metrics["epoch"] for metrics in trainer.fit().metrics_history] == [0, 1]


def test_predictions_come_from_the_checkpoint_of_a_run(result: Result, tmp_path: Path) -> None:
    import h5py

    checkpoint = result.checkpoint
    assert find_predictor(checkpoint) is LightningPredictor
    module = Net(width=5)
    module.load_state_dict(weights(result))
    with torch.inference_mode():
        expected = module(torch.from_numpy(X)).numpy()
    for model in (Net, Net(width=5), lambda: Net(width=5)):
        predictor = LightningPredictor.from_checkpoint(checkpoint, model)
        assert np.array_equal(predictor.predict(X)["predictions"], expected)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = X
    BatchPredictor.from_checkpoint(checkpoint, LightningPredictor, model_class=Net).predict(
        read_hdf5(tmp_path / "rows.h5"),
        output=tmp_path / "scores.h5",
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path / "runs", verbose=0),
    )
    with h5py.File(tmp_path / "scores.h5") as file:
        assert np.array_equal(file["predictions"][()], expected)


def test_what_cannot_work_is_refused_before_anything_starts(tmp_path: Path) -> None:
    builder = LightningConfigBuilder
    config = builder().module(cls=Net).build()
    with pytest.raises(ConfigError, match=r"call module\(cls"):
        builder().trainer(max_epochs=1).build()
    with pytest.raises(ConfigError, match="must be a class, not a class instance"):
        builder().module(cls=Net())
    with pytest.raises(ConfigError, match=r"must be a subclass of 'pl\.LightningModule'!"):
        builder().module(cls=dict)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"devices=2\): ScalingConfig\(num_workers"):
        builder().trainer(devices=2)
    with pytest.raises(ConfigError, match=r"fit_params\(\) has ckpt_path"):
        builder().fit_params(ckpt_path="last")
    supported = "LightningTrainer currently supports 'ddp', 'fsdp', and 'deepspeed'"
    with pytest.raises(ConfigError, match=rf"name='fspd'\): {supported}\. Did you mean 'fsdp'\?"):
        builder().strategy(name="fspd")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=supported):
        builder().strategy(name=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"dirpath='there'\): the run directory has"):
        builder().checkpointing(dirpath="there")
    with pytest.raises(ConfigError, match=r"train_time_interval=.*every_n_train_steps"):
        builder().checkpointing(train_time_interval=timedelta(minutes=1))
    with pytest.raises(ConfigError, match="LightningConfigBuilder"):
        LightningTrainer({"module": Net})  # type: ignore[arg-type]
    loaders = builder().module(cls=Net).fit_params(train_dataloaders=[1]).build()
    with pytest.raises(ConfigError, match="takes the place of"):
        LightningTrainer(loaders, datasets=DATASETS)
    with pytest.raises(ConfigError, match="'train' is needed"):
        LightningTrainer(config, datasets={"valid": DATASETS["val"]})
    with pytest.raises(ConfigError, match="there are none"):
        LightningTrainer(config, datasets_iter_config={"batch_size": 2})
    with pytest.raises(ConfigError, match="of type dict; type RunConfig is needed"):
        LightningTrainer(config, run_config={})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="every_n_epochs"):
        LightningTrainer(
            config, run_config=RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=1))
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "warning"),
    [
        ({"monitor": "acc", "mode": "max"}, ""),
        ({"save_top_k": 3}, ""),
        ({"save_last": True, "filename": "x", "verbose": True}, ""),
        ({"save_top_k": 1}, "used: num_to_keep=3, not 1."),
        (
            {"monitor": "loss"},
            "used: checkpoint_score_attribute='acc', not 'loss'; checkpoint_score_order='max', not "
            "'min'.",
        ),
    ],
)
def test_what_the_run_config_says_of_checkpoints_comes_first(
    said: dict[str, Any], warning: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config = LightningConfigBuilder().module(cls=Net).checkpointing(**said).build()
    wanted = CheckpointConfig(
        num_to_keep=3, checkpoint_score_attribute="acc", checkpoint_score_order="max"
    )
    trainer = LightningTrainer(config, run_config=RunConfig(checkpoint_config=wanted))
    assert trainer.run_config.checkpoint_config == wanted
    shown = capfd.readouterr().err
    assert warning in shown
    assert bool(warning) == bool(shown)
    own = LightningTrainer(config).run_config.checkpoint_config
    assert own.checkpoint_score_attribute == said.get("monitor")
    assert own.num_to_keep == said.get("save_top_k")
    assert capfd.readouterr().err == ""


def test_a_new_config_of_a_restored_run_says_which_checkpoints_are_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def config(**said: Any) -> Any:
        return LightningConfigBuilder().module(cls=Net).checkpointing(**said).build()

    begun = LightningTrainer(config(save_top_k=1))
    stored: dict[str, Any] = {"run_config": begun.run_config}
    loop = begun.train_loop_per_worker
    again = LightningTrainer._rebuild(loop, {**stored, "lightning_config": config(save_top_k=5)})
    assert again.run_config.checkpoint_config.num_to_keep == 5
    assert LightningTrainer._rebuild(loop, stored).run_config.checkpoint_config.num_to_keep == 1
    own = {"run_config": RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=3))}
    assert LightningTrainer._rebuild(loop, own).run_config.checkpoint_config.num_to_keep == 3
    assert "used: num_to_keep=3, not 1." in capfd.readouterr().err
