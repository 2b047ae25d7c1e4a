"""`HorovodTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import given_or_default
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.horovod.config import HorovodConfig
from hpctrain.horovod.elastic import ElasticLoop
from hpctrain.train_function import takes_config
from hpctrain.trainer import DataParallelTrainer, TrainLoop

if TYPE_CHECKING:
    from hpctrain.preprocessors import Preprocessor
    from hpctrain.validation_config import ValidationConfig


class HorovodTrainer(DataParallelTrainer):
    """Runs a training function on every worker, in which Horovod is initialised.

    Parameters
    ----------
    train_loop_per_worker
        The training function: no argument, or one, which is `train_loop_config`. Calling
        ``hvd.init()`` in it does no harm.
    horovod_config
        How Horovod is set up.
    train_loop_config, dataset_config, validation_config
        As in `hpctrain.DataParallelTrainer`.
    scaling_config, run_config, datasets, metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.BaseTrainer`. Elastic runs have no datasets.

    Raises
    ------
    ConfigError
        If `horovod_config` is not one, or an elastic run is to have datasets or one process.
    """

    _backend_argument: ClassVar[str] = "horovod_config"

    def __init__(
        self,
        train_loop_per_worker: TrainLoop,
        *,
        horovod_config: HorovodConfig | None = None,
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
        horovod_config = given_or_default("horovod_config", horovod_config, HorovodConfig)
        loop = train_loop_per_worker
        if isinstance(loop, ElasticLoop):  # of a stored run
            loop = loop.train_loop
        if horovod_config.is_elastic:
            if datasets:
                raise ConfigError(
                    f"HorovodConfig(max_replacements={horovod_config.max_replacements}) and "
                    f"datasets={sorted(datasets)}: where a dead worker was in a dataset is not "
                    f"known. Read the data in the training function, with "
                    f"hvd.elastic.ElasticSampler, or set max_replacements=0."
                )
            loop = ElasticLoop(
                train_loop=loop,
                takes_config=takes_config(loop),
                max_replacements=horovod_config.max_replacements,
            )
        super().__init__(
            loop,
            train_loop_config=train_loop_config,
            backend_config=horovod_config,
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            validation_config=validation_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )
        if horovod_config.is_elastic and self.scaling_config.num_workers == 0:
            raise ConfigError(
                f"HorovodConfig(max_replacements={horovod_config.max_replacements}) and "
                f"ScalingConfig(num_workers=0): the only worker is this interpreter, which cannot "
                f"be replaced. Set max_replacements=0, or num_workers=1."
            )
