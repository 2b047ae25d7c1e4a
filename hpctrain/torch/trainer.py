"""`TorchTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctrain.checkpoint import Checkpoint
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.torch.config import TorchConfig
from hpctrain.trainer import DataParallelTrainer, TrainLoop


class TorchTrainer(DataParallelTrainer):
    """Runs a PyTorch training function on every worker, inside one process group.

    Parameters
    ----------
    train_loop_per_worker
        The training function: no argument, or one, which is `train_loop_config`.
    torch_config
        How torch.distributed is set up.
    train_loop_config, dataset_config
        As in `hpctrain.DataParallelTrainer`.
    scaling_config, run_config, datasets, metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.BaseTrainer`.
    """

    def __init__(
        self,
        train_loop_per_worker: TrainLoop,
        *,
        torch_config: TorchConfig | None = None,
        train_loop_config: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        preprocessor: Any = None,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=TorchConfig() if torch_config is None else torch_config,
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )

    @classmethod
    def _backend_argument(cls) -> str:
        return "torch_config"
