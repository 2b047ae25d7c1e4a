"""What reports the checkpoints of a framework asks for their validation, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain import (
    Checkpoint,
    ConfigError,
    ValidationConfig,
    ValidationTaskConfig,
)
from hpctrain.torch import TorchTrainer, report_state
from tests import runs


def fit(path: Path, train: Any, validation_config: Any) -> list[Any]:
    """Return what validations have found, checkpoint by checkpoint."""
    result = runs.fit(
        train, path, num_workers=0, trainer=TorchTrainer, validation_config=validation_config
    )
    return [metrics.get("validated") for _, metrics in result.best_checkpoints]


def of_state(validation: Any) -> None:
    import torch

    report_state({"x": 1}, weights={"w": torch.ones(2)}, validation=validation)
    report_state({"x": 2}, weights={"w": torch.ones(2)})


def of_lightning(validation: Any) -> None:
    import lightning.pytorch as pl
    import torch

    from hpctrain.lightning import ReportCallback

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layer(batch).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ReportCallback(validation=validation)],
    ).fit(Model(), torch.utils.data.DataLoader(torch.ones(4, 1)))


def of_transformers(validation: Any) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from hpctrain.huggingface import ReportCallback

    config = BertConfig(
        vocab_size=8,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=4,
        max_position_embeddings=8,
    )
    rows = [{"input_ids": torch.tensor([1, 2]), "labels": torch.tensor(1)}] * 4
    Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir="unused",
            max_steps=1,
            save_steps=1,
            logging_steps=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=rows,
        callbacks=[ReportCallback(validation=validation)],
    ).train()


FRONTS = [
    pytest.param(of_state, [7, None], id="state"),
    pytest.param(of_lightning, [7], id="lightning"),
    pytest.param(of_transformers, [7], id="transformers"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("report", "found"), FRONTS)
def test_its_checkpoints_are_validated(
    tmp_path: Path,
    report: Any,
    found: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    # Not of this module: the process that validates cannot import it.
    def validate(checkpoint: Checkpoint, factor: int = 1) -> dict[str, Any]:
        return {"validated": factor}

    task = ValidationTaskConfig(fn_kwargs={"factor": 7})
    assert fit(tmp_path, lambda: report(task), ValidationConfig(fn=validate)) == found


def test_a_state_is_not_saved_that_no_function_validates(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the trainer has no function for it"):
        fit(tmp_path, lambda: of_state(True), None)
    assert not [*(tmp_path / "run" / "checkpoints").glob("[0-9]*")]
