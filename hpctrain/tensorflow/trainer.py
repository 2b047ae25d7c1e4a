"""`TensorflowTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import given_or_default
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.tensorflow.config import TensorflowConfig
from hpctrain.trainer import DataParallelTrainer, TrainLoop

if TYPE_CHECKING:
    from hpctrain.preprocessors import Preprocessor
    from hpctrain.validation_config import ValidationConfig


class TensorflowTrainer(DataParallelTrainer):
    """Runs a TensorFlow training function on every worker, which finds the others in TF_CONFIG.

    Parameters
    ----------
    train_loop_per_worker
        The training function: no argument, or one, which is `train_loop_config`.
    tensorflow_config
        How TensorFlow is set up.
    train_loop_config, dataset_config, validation_config
        As in `hpctrain.DataParallelTrainer`.
    scaling_config, run_config, datasets, metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.BaseTrainer`.

    Raises
    ------
    ConfigError
        If `tensorflow_config` is not one.
    """

    _backend_argument: ClassVar[str] = "tensorflow_config"

    def __init__(
        self,
        train_loop_per_worker: TrainLoop,
        *,
        tensorflow_config: TensorflowConfig | None = None,
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
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=given_or_default(
                "tensorflow_config", tensorflow_config, TensorflowConfig
            ),
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            validation_config=validation_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )
