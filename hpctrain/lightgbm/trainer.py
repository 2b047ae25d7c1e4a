"""`LightGBMTrainer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import given_or_default
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.gbdt.boosting import Boosting, EarlyStopping, Ingest
from hpctrain.gbdt.trainer import GBDTTrainer
from hpctrain.lightgbm.boost import LightGBMBoosting
from hpctrain.lightgbm.config import LightGBMConfig
from hpctrain.trainer import TrainLoop

if TYPE_CHECKING:
    import lightgbm

    from hpctrain.lightgbm.checkpoint import LightGBMCheckpoint
    from hpctrain.preprocessors import Preprocessor
    from hpctrain.validation_config import ValidationConfig


class LightGBMTrainer(GBDTTrainer):
    """Trains boosted trees with LightGBM, each rank on its part of the data.

    Parameters
    ----------
    train_loop_per_worker
        A training function that calls ``lightgbm.train()`` itself, with the parameters of
        `get_network_params` merged into its own. With None hpctrain runs the loop, with the
        arguments below.
    train_loop_config
        As in `hpctrain.DataParallelTrainer`.
    lightgbm_config
        How LightGBM's ranks communicate.
    datasets, label_column
        As in `hpctrain.gbdt.GBDTTrainer`.
    params
        Parameters of ``lightgbm.train()``. The default of ``num_threads`` is the CPUs of a worker.
        The default of ``tree_learner`` on several ranks is ``data``; ``voting`` sends less data if
        there are many features.
    num_boost_round, weight_column, group_column, categorical_columns, early_stopping, ingest
        As in `hpctrain.gbdt.GBDTTrainer`.
    dataset_params
        Parameters of ``lightgbm.Dataset``, such as ``max_bin``, as in its ``params``.
    dmatrix_params
        Ray Train's arguments by name of a dataset; they must be empty.
    train_kwargs
        Further arguments of ``lightgbm.train()``: ``feval``, ``callbacks``.
    validation_config
        As in `hpctrain.DataParallelTrainer`. Without a `train_loop_per_worker` every checkpoint is
        validated.
    scaling_config, dataset_config, run_config, metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.gbdt.GBDTTrainer`.

    Raises
    ------
    ConfigError
        As in `hpctrain.gbdt.GBDTTrainer`.

    Examples
    --------
    ::

        LightGBMTrainer(
            datasets={"train": train, "valid": valid},
            label_column="target",
            params={"objective": "binary", "metric": ["binary_logloss", "auc"]},
            num_boost_round=50,
            scaling_config=ScalingConfig(num_workers=4),
        ).fit()
    """

    _backend_argument: ClassVar[str] = "lightgbm_config"
    _boosting_cls: ClassVar[type[Boosting]] = LightGBMBoosting
    _instead_of_dmatrix_params: ClassVar[str] = (
        "lightgbm.Dataset has other arguments. Give dataset_params=, its parameters."
    )

    def __init__(
        self,
        train_loop_per_worker: TrainLoop | None = None,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        lightgbm_config: LightGBMConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        label_column: str | None = None,
        params: Mapping[str, Any] | None = None,
        num_boost_round: int | None = None,
        weight_column: str | None = None,
        group_column: str | None = None,
        categorical_columns: Sequence[str] = (),
        early_stopping: EarlyStopping | None = None,
        ingest: Ingest = "memory",
        dataset_params: Mapping[str, Any] | None = None,
        dmatrix_params: Mapping[str, Mapping[str, Any]] | None = None,
        train_kwargs: Mapping[str, Any] | None = None,
        validation_config: ValidationConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: DataConfig | None = None,
        run_config: RunConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=given_or_default("lightgbm_config", lightgbm_config, LightGBMConfig),
            datasets=datasets,
            label_column=label_column,
            params=params,
            num_boost_round=num_boost_round,
            weight_column=weight_column,
            group_column=group_column,
            categorical_columns=categorical_columns,
            early_stopping=early_stopping,
            ingest=ingest,
            dataset_params=dataset_params,
            dmatrix_params=dmatrix_params,
            train_kwargs=train_kwargs,
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            validation_config=validation_config,
            run_config=run_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> lightgbm.Booster:
        """Return the booster of a checkpoint. Not collective.

        Raises
        ------
        CheckpointError
            If it has none, or is of another framework.
        """
        with checkpoint.as_directory() as directory:
            booster: lightgbm.Booster = cls._checkpoint_cls().load(directory)
            return booster

    @classmethod
    def _checkpoint_cls(cls) -> type[LightGBMCheckpoint]:
        from hpctrain.lightgbm.checkpoint import LightGBMCheckpoint

        return LightGBMCheckpoint
