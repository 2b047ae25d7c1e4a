"""`AccelerateTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from hpctrain.checkpoint import Checkpoint
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.huggingface.config import AccelerateConfig
from hpctrain.torch.config import TorchConfig
from hpctrain.torch.trainer import TorchTrainer
from hpctrain.trainer import TrainLoop

if TYPE_CHECKING:
    from hpctrain.huggingface.accelerate_config import AccelerateFile
    from hpctrain.preprocessors import Preprocessor
    from hpctrain.validation_config import ValidationConfig

# With FSDP, what is offloaded or gathered lies on the CPU.
_BOTH_DEVICES = "cpu:gloo,cuda:nccl"


class AccelerateTrainer(TorchTrainer):
    """Runs a training function that uses Accelerate on every worker.

    Its ``Accelerator()`` finds the ranks, and the settings of `accelerate_config`, as under
    ``accelerate launch``.

    Parameters
    ----------
    train_loop_per_worker
        The training function: no argument, or one, which is `train_loop_config`.
    train_loop_config, dataset_config, validation_config
        As in `hpctrain.DataParallelTrainer`.
    accelerate_config
        A file that ``accelerate config`` wrote, or what would be in it: precision, DeepSpeed, FSDP,
        compilation. It is read and checked now, with the DeepSpeed file that it names. How many
        processes there are, and where, is said by `scaling_config` alone. None: Accelerate's own
        defaults; a file in the home directory is not looked for.
    torch_config
        How torch.distributed is set up.
    scaling_config, run_config, datasets, metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.BaseTrainer`.

    Raises
    ------
    ConfigError
        If `accelerate_config` cannot be read, Accelerate refuses it, or it wants GPUs that workers
        do not have.
    """

    def __init__(
        self,
        train_loop_per_worker: TrainLoop,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        accelerate_config: AccelerateFile | None = None,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            torch_config=torch_config,
            train_loop_config=train_loop_config,
            dataset_config=dataset_config,
            validation_config=validation_config,
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )
        assert isinstance(self.backend_config, TorchConfig)
        self.backend_config = _accelerated(
            self.backend_config, accelerate_config, use_gpu=self.scaling_config.use_gpu
        )


def _accelerated(
    config: TorchConfig, file: AccelerateFile | None, *, use_gpu: bool
) -> AccelerateConfig:
    given = {field.name: getattr(config, field.name) for field in fields(config)}
    if file is not None:
        if given.get("variables"):
            raise ConfigError(
                f"accelerate_config={file!r}, and torch_config=AccelerateConfig(variables=...), "
                f"which is what one makes of the other. Drop one of the two."
            )
        from hpctrain.huggingface.accelerate_config import read_variables

        given["variables"] = read_variables(file, use_gpu=use_gpu)
    if given["backend"] is None and "ACCELERATE_USE_FSDP" in given.get("variables", {}):
        given["backend"] = _BOTH_DEVICES
    return AccelerateConfig(**given)
