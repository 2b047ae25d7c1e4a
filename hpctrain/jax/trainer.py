"""`JaxTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import given_or_default
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.jax.config import JaxConfig
from hpctrain.trainer import DataParallelTrainer, TrainLoop

if TYPE_CHECKING:
    from hpctrain.preprocessors import Preprocessor
    from hpctrain.validation_config import ValidationConfig


class JaxTrainer(DataParallelTrainer):
    """Runs a JAX training function on every worker, in one world of all workers' devices.

    ``jax.devices()`` are the devices of all ranks, in the order of ranks; ``jax.process_index()``
    is the rank.

    Parameters
    ----------
    train_loop_per_worker
        The training function: no argument, or one, which is `train_loop_config`.
    jax_config
        How JAX's processes find each other.
    train_loop_config, dataset_config, validation_config
        As in `hpctrain.DataParallelTrainer`.
    scaling_config, run_config, datasets, metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.BaseTrainer`.

    Raises
    ------
    ConfigError
        If `jax_config` is not one.
    """

    _backend_argument: ClassVar[str] = "jax_config"

    def __init__(
        self,
        train_loop_per_worker: TrainLoop,
        *,
        jax_config: JaxConfig | None = None,
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
            backend_config=given_or_default("jax_config", jax_config, JaxConfig),
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            validation_config=validation_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )
