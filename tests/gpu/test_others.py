"""Other frameworks find the GPU of their rank, and compute there what they do on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import RunConfig, ScalingConfig, WorkerError
from hpctrain.torch import TorchTrainer

pytestmark = [pytest.mark.gpu, pytest.mark.mpi]


def _options(storage: Path, name: str, *, use_gpu: bool) -> dict[str, Any]:
    return {
        "scaling_config": ScalingConfig(num_workers=1, use_gpu=use_gpu),
        "run_config": RunConfig(storage_path=storage, name=name, verbose=0, launcher="local"),
    }


def test_jax_computes_on_the_gpu_and_restores_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("orbax.checkpoint")
    from hpctrain.jax import JaxCheckpoint, JaxTrainer

    def train() -> tuple[str, list[float]]:
        import jax
        import jax.numpy as jnp

        import hpctrain
        from hpctrain.jax import JaxCheckpoint

        x = jnp.arange(24.0).reshape(8, 3) / 24
        weights = jnp.ones(3)

        @jax.jit
        def step(weights: Any) -> Any:
            return jax.value_and_grad(lambda w: ((x @ w - 0.5) ** 2).mean())(weights)

        losses = []
        for _ in range(10):
            loss, gradient = step(weights)
            weights = weights - 0.1 * gradient
            losses.append(float(loss))
        hpctrain.report({"loss": losses[-1]}, JaxCheckpoint.from_state({"w": weights}))
        return jax.devices()[0].platform, losses

    gpu = JaxTrainer(train, **_options(tmp_path, "gpu", use_gpu=True)).fit()
    cpu = JaxTrainer(train, **_options(tmp_path, "cpu", use_gpu=False)).fit()
    assert (gpu.return_value[0], cpu.return_value[0]) == ("gpu", "cpu")
    # A matrix product of JAX on a GPU may use TF32.
    np.testing.assert_allclose(gpu.return_value[1], cpu.return_value[1], rtol=5e-3)
    checkpoints = (gpu.checkpoint, cpu.checkpoint)
    first, second = (JaxCheckpoint(saved.path).get_state()["w"] for saved in checkpoints if saved)
    np.testing.assert_allclose(first, second, rtol=5e-3)


def test_lightning_trains_on_the_gpu_of_the_rank(tmp_path: Path) -> None:
    pytest.importorskip("lightning")

    def train(config: dict[str, str]) -> tuple[str, list[float]]:
        import lightning.pytorch as pl
        import torch

        from hpctrain import lightning as hl

        class Net(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.layer = torch.nn.Linear(3, 1)
                self.seen: list[float] = []

            def training_step(self, batch: Any) -> Any:
                loss = (self.layer(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()
                self.seen.append(loss.item())
                return loss

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 96).reshape(32, 3))
        net = Net()
        trainer = hl.prepare_trainer(
            pl.Trainer(
                max_epochs=2,
                accelerator=config["accelerator"],
                devices="auto",
                strategy=hl.RayDDPStrategy(),
                plugins=[hl.RayLightningEnvironment()],
                callbacks=[hl.RayTrainReportCallback()],
                enable_progress_bar=False,
                logger=False,
            )
        )
        trainer.fit(net, torch.utils.data.DataLoader(data, batch_size=8))
        return str(trainer.strategy.root_device), net.seen

    def run(name: str, accelerator: str, *, use_gpu: bool) -> Any:
        options = _options(tmp_path, name, use_gpu=use_gpu)
        config = {"accelerator": accelerator}
        return TorchTrainer(train, train_loop_config=config, **options).fit().return_value

    gpu = run("gpu", "auto", use_gpu=True)
    cpu = run("cpu", "cpu", use_gpu=False)
    with pytest.raises(WorkerError, match=r"computes on cuda:0, and this rank has cpu"):
        run("neither", "auto", use_gpu=False)
    assert (gpu[0], cpu[0]) == ("cuda:0", "cpu")
    np.testing.assert_allclose(gpu[1], cpu[1], rtol=1e-3)


def test_transformers_and_accelerate_use_the_gpu_of_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def train() -> tuple[str, str, list[float]]:
        import torch
        from accelerate import Accelerator
        from transformers import (
            BertConfig,
            BertForSequenceClassification,
            Trainer,
            TrainingArguments,
        )

        from hpctrain.huggingface import ReportCallback, prepare_trainer

        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=8,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
            max_position_embeddings=8,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        rows = [
            {"input_ids": torch.tensor([1, n % 8]), "labels": torch.tensor(n % 2)} for n in range(8)
        ]
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=TrainingArguments(
                output_dir="unused",
                max_steps=6,
                per_device_train_batch_size=4,
                learning_rate=0.01,
                logging_steps=1,
                report_to=[],
                disable_tqdm=True,
                save_strategy="no",
            ),
            train_dataset=rows,
            callbacks=[ReportCallback()],
        )
        prepare_trainer(trainer).train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return str(trainer.args.device), str(Accelerator().device), losses

    gpu = TorchTrainer(train, **_options(tmp_path, "gpu", use_gpu=True)).fit().return_value
    cpu = TorchTrainer(train, **_options(tmp_path, "cpu", use_gpu=False)).fit().return_value
    assert gpu[:2] == ("cuda:0", "cuda:0")
    assert cpu[:2] == ("cpu", "cpu")
    assert len(gpu[2]) == 6
    np.testing.assert_allclose(gpu[2], cpu[2], rtol=5e-3)
