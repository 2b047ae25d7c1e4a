"""A transformers.Trainer and an Accelerator in the training function of a TorchTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain import RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer

pytestmark = pytest.mark.mpi


def test_ranks_on_cpus_train_together_without_being_asked_to_use_the_cpu(tmp_path: Path) -> None:
    def train() -> list[Any]:
        import torch
        from accelerate import Accelerator
        from transformers import (
            BertConfig,
            BertForSequenceClassification,
            Trainer,
            TrainingArguments,
        )

        from hpctrain import get_context
        from hpctrain.huggingface import ReportCallback, prepare_trainer

        torch.manual_seed(get_context().get_world_rank())
        config = BertConfig(
            vocab_size=8,
            hidden_size=4,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=4,
            max_position_embeddings=8,
        )
        rows = [
            {"input_ids": torch.tensor([1, n % 8]), "labels": torch.tensor(n % 2)} for n in range(8)
        ]
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=TrainingArguments(
                output_dir="unused",
                max_steps=2,
                per_device_train_batch_size=2,
                report_to=[],
                disable_tqdm=True,
                save_strategy="no",
            ),
            train_dataset=rows,
            callbacks=[ReportCallback()],
        )
        prepare_trainer(trainer).train()
        weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        mine = (trainer.args.world_size, Accelerator().num_processes, weights.tolist())
        everyone: list[Any] = [None] * get_context().get_world_size()
        torch.distributed.all_gather_object(everyone, mine)
        return everyone

    result = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0, launcher="local"),
    ).fit()
    first, second = result.return_value
    assert first[:2] == second[:2] == (2, 2)
    assert first == second
