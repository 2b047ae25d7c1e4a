"""`LightningTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import given_or_default
from hpctrain.config import CheckpointConfig, DataConfig, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.lightning.config import LightningConfig
from hpctrain.lightning.loop import TRAIN, VAL, LightningLoop
from hpctrain.log import log
from hpctrain.torch.config import TorchConfig
from hpctrain.torch.trainer import TorchTrainer

if TYPE_CHECKING:
    from hpctrain.preprocessors import Preprocessor
    from hpctrain.validation_config import ValidationConfig


class LightningTrainer(TorchTrainer):
    """Fits a LightningModule on all ranks, without a training function.

    Where there is a Lightning script already, `hpctrain.torch.TorchTrainer` runs it as it is, with
    `prepare_trainer`, `HpctrainEnvironment` and `ReportCallback`.

    Parameters
    ----------
    lightning_config
        What `LightningConfigBuilder` built.
    torch_config
        How torch.distributed is set up.
    scaling_config, dataset_config, validation_config, run_config
        As in `hpctrain.DataParallelTrainer`.
    datasets
        ``train``, and ``val`` or not, in place of the loaders of ``fit_params()``.
    datasets_iter_config
        Arguments of `hpctrain.data.DataIterator.iter_torch_batches` for them.
    metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.DataParallelTrainer`.

    Raises
    ------
    ConfigError
        If the data are given twice, or not at all.

    Examples
    --------
    ::

        config = (
            LightningConfigBuilder()
            .module(cls=Net, lr=1e-3)
            .trainer(max_epochs=10)
            .fit_params(datamodule=Digits())
            .build()
        )
        LightningTrainer(config, scaling_config=ScalingConfig(num_workers=4)).fit()
    """

    def __init__(
        self,
        lightning_config: LightningConfig,
        *,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        datasets_iter_config: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        if not isinstance(lightning_config, LightningConfig):
            raise ConfigError(
                f"lightning_config is a {type(lightning_config).__name__}; give what "
                f"LightningConfigBuilder().module(...).build() returns."
            )
        _check_data(lightning_config, datasets or {}, datasets_iter_config)
        super().__init__(
            LightningLoop(
                config=lightning_config,
                datasets=tuple(datasets or ()),
                iter_config=dict(datasets_iter_config or {}),
            ),
            torch_config=torch_config,
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            validation_config=validation_config,
            run_config=_keep(
                given_or_default("run_config", run_config, RunConfig),
                lightning_config.checkpoint_config,
            ),
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )

    @classmethod
    def _rebuild(cls, train_loop: Any, arguments: dict[str, Any]) -> LightningTrainer:
        if not isinstance(train_loop, LightningLoop):
            raise ConfigError(
                f"LightningTrainer.restore(train_loop_per_worker={train_loop!r}): it has no "
                f"training function. lightning_config=... replaces what is trained."
            )
        loop = train_loop
        own = {"lightning_config": loop.config, "datasets_iter_config": loop.iter_config}
        rest = {k: v for k, v in arguments.items() if k != "train_loop_config"}
        run = rest.get("run_config")
        if run is not None and run.checkpoint_config == loop.config.checkpoint_config:
            # That is what the stored lightning_config said; the one of now says it anew.
            rest["run_config"] = replace(run, checkpoint_config=CheckpointConfig())
        return cls(**{**own, **rest})


def _check_data(
    config: LightningConfig, datasets: Mapping[str, Any], iter_config: Mapping[str, Any] | None
) -> None:
    given = sorted(config.fit_params)
    if datasets and given:
        raise ConfigError(
            f"LightningTrainer(datasets=...) takes the place of fit_params({', '.join(given)}). "
            f"Give one of the two."
        )
    if iter_config and not datasets:
        raise ConfigError("datasets_iter_config is for datasets, and there are none.")
    if datasets and (TRAIN not in datasets or set(datasets) - {TRAIN, VAL}):
        raise ConfigError(
            f"datasets has {sorted(datasets)}: {TRAIN!r} is needed, and {VAL!r} is known beside it."
        )


def _keep(run: RunConfig, wanted: CheckpointConfig | None) -> RunConfig:
    said = run.checkpoint_config
    if said.checkpoint_frequency or said.checkpoint_at_end:
        raise ConfigError(
            "CheckpointConfig(checkpoint_frequency=..., checkpoint_at_end=...): say when with "
            "LightningConfigBuilder().checkpointing(every_n_epochs=...)."
        )
    if wanted is None:
        return run
    if said == CheckpointConfig():
        return replace(run, checkpoint_config=wanted)
    # As in Ray Train, whose own example says it twice.
    names = ["num_to_keep", "checkpoint_score_attribute"]
    if wanted.checkpoint_score_attribute is not None:
        names.append("checkpoint_score_order")
    differing = [
        f"{name}={getattr(said, name)!r}, not {getattr(wanted, name)!r}"
        for name in names
        if getattr(wanted, name) is not None and getattr(said, name) != getattr(wanted, name)
    ]
    if differing:
        log(
            f"warning: which checkpoints are kept is said by RunConfig(checkpoint_config=...) and "
            f"by LightningConfigBuilder().checkpointing(...). The former is used: "
            f"{'; '.join(differing)}."
        )
    return run
