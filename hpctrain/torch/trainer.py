"""`TorchTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import given_or_default
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.torch.config import TorchConfig
from hpctrain.trainer import DataParallelTrainer, TrainLoop

if TYPE_CHECKING:
    from hpctrain.preprocessors import Preprocessor
    from hpctrain.validation_config import ValidationConfig


class TorchTrainer(DataParallelTrainer):
    """Runs a PyTorch training function on every worker, inside one process group.

    Parameters
    ----------
    train_loop_per_worker
        The training function: no argument, or one, which is `train_loop_config`.
    torch_config
        How torch.distributed is set up.
    train_loop_config, dataset_config, validation_config
        As in `hpctrain.DataParallelTrainer`.
    scaling_config, run_config, datasets, metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.BaseTrainer`.

    Raises
    ------
    ConfigError
        If `torch_config` is not one, or wants nccl for workers without GPUs.
    """

    _backend_argument: ClassVar[str] = "torch_config"

    def __init__(
        self,
        train_loop_per_worker: TrainLoop,
        *,
        torch_config: TorchConfig | None = None,
        train_loop_config: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        torch_config = given_or_default("torch_config", torch_config, TorchConfig)
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=torch_config,
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            validation_config=validation_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )
        if torch_config.backend == "nccl" and not self.scaling_config.use_gpu:
            raise ConfigError(
                "TorchConfig(backend='nccl') is for workers with GPUs, but use_gpu=False. Set "
                "ScalingConfig(use_gpu=True), or leave backend out: it is gloo then."
            )
