"""`LightningConfigBuilder`: what a `LightningTrainer` trains, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from hpctrain.checks import did_you_mean, shown
from hpctrain.config import CheckpointConfig
from hpctrain.errors import ConfigError
from hpctrain.rules import checked, choice, kind, mapping, optional

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

Strategy = Literal["ddp", "fsdp", "deepspeed"]

STRATEGIES: Mapping[Strategy, str] = {
    "ddp": "DDPStrategy",
    "fsdp": "FSDPStrategy",
    "deepspeed": "DeepSpeedStrategy",
}
"""Class of each strategy, in Lightning's ``strategies``."""

_OURS = {
    "devices": "ScalingConfig(num_workers=...) says how many there are",
    "num_nodes": "ScalingConfig(slurm=SlurmConfig(nodes=...)) says how many there are",
    "strategy": "use LightningConfigBuilder.strategy()",
    "enable_checkpointing": "use LightningConfigBuilder.checkpointing()",
}
_FIT_PARAMS = ("train_dataloaders", "val_dataloaders", "datamodule")


def _module_class(what: str, value: Any) -> Any:
    # What follows the values are Ray Train's words.
    if not isinstance(value, type):
        raise ConfigError(
            f"{what} is {shown(value)}: 'module_class' must be a class, not a class instance. It "
            f"is made on every rank: give its arguments to module(), too."
        )
    if not hasattr(value, "training_step"):
        raise ConfigError(
            f"{what} is {shown(value)}: 'module_class' must be a subclass of "
            f"'pl.LightningModule'! It has no training_step()."
        )
    return value


@checked(
    module_class=_module_class,
    module=mapping(" of arguments"),
    trainer=mapping(" of arguments"),
    fit_params=mapping(" of arguments"),
    strategy_name=choice(*STRATEGIES),
    strategy=mapping(" of arguments"),
    reports=mapping(" of arguments"),
    checkpoint_config=optional(kind(CheckpointConfig)),
)
@dataclass(frozen=True, kw_only=True)
class LightningConfig:
    """What a `LightningTrainer` trains, and how; made by `LightningConfigBuilder`."""

    module_class: type[LightningModule]
    """Class of the module; it is made on every rank."""
    module: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of Lightning's Trainer."""
    fit_params: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its ``fit()``."""
    strategy_name: Strategy = "ddp"
    """Which of Lightning's strategies."""
    strategy: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments."""
    reports: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `ReportCallback`."""
    checkpoint_config: CheckpointConfig | None = None
    """Which checkpoints are kept; None leaves that to the RunConfig."""


class LightningConfigBuilder:
    """Collects what a `LightningTrainer` needs.

    Examples
    --------
    ::

        config = (
            LightningConfigBuilder()
            .module(cls=Net, lr=1e-3)
            .trainer(max_epochs=10)
            .fit_params(datamodule=Digits())
            .checkpointing(monitor="val_loss", mode="min", save_top_k=2)
            .build()
        )
    """

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def module(self, cls: type[LightningModule], **kwargs: Any) -> LightningConfigBuilder:
        """Set the class of the module, and its arguments. Not collective.

        Raises
        ------
        ConfigError
            If it is not such a class.
        """
        _module_class("module(cls=...)", cls)
        return self._with(module_class=cls, module=kwargs)

    def trainer(self, **kwargs: Any) -> LightningConfigBuilder:
        """Set arguments of Lightning's Trainer. Not collective.

        Raises
        ------
        ConfigError
            If one is not Lightning's to know.
        """
        for name, instead in _OURS.items():
            if name in kwargs:
                raise ConfigError(f"trainer({name}={kwargs[name]!r}): {instead}.")
        return self._with(trainer=kwargs)

    def fit_params(self, **kwargs: Any) -> LightningConfigBuilder:
        """Set arguments of the Trainer's ``fit()``: loaders, or a datamodule. Not collective.

        Raises
        ------
        ConfigError
            If one is something else.
        """
        if others := sorted(set(kwargs) - set(_FIT_PARAMS)):
            raise ConfigError(
                f"fit_params() has {', '.join(others)}. It takes {', '.join(_FIT_PARAMS)}; which "
                f"checkpoint a run goes on from is found by its name."
            )
        return self._with(fit_params=kwargs)

    def strategy(self, name: Strategy = "ddp", **kwargs: Any) -> LightningConfigBuilder:
        """Choose Lightning's strategy, and its arguments. Not collective.

        Raises
        ------
        ConfigError
            If it is unknown.
        """
        if name not in STRATEGIES:
            meant = did_you_mean(str(name), STRATEGIES)
            raise ConfigError(
                f"strategy(name={name!r}): LightningTrainer currently supports 'ddp', 'fsdp', and "
                f"'deepspeed'. {meant}".rstrip()
            )
        return self._with(strategy_name=name, strategy=kwargs)

    def checkpointing(
        self,
        *,
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
        save_top_k: int | None = None,
        save_last: bool | Literal["link"] | None = None,
        every_n_epochs: int = 1,
        every_n_train_steps: int = 0,
        report_every_n_steps: int = 0,
        save_weights_only: bool = False,
        save_on_train_epoch_end: bool | None = None,
        filename: str | None = None,
        auto_insert_metric_name: bool = True,
        enable_version_counter: bool = True,
        verbose: bool = False,
        dirpath: str | PathLike[str] | None = None,
        train_time_interval: timedelta | None = None,
    ) -> LightningConfigBuilder:
        """Say when checkpoints are saved, and which are kept. Not collective.

        The arguments are those of Lightning's ``ModelCheckpoint``, and one more.

        Parameters
        ----------
        monitor
            Metric by which checkpoints are compared; None keeps the newest.
        mode
            Whether small or large values are good.
        save_top_k
            How many are kept, beside the newest; None or -1 keeps all.
        save_last
            Without effect, as in Ray Train: the newest is kept in any case.
        every_n_epochs, every_n_train_steps
            Epochs, and optimizer steps, between two checkpoints. 0 is none.
        report_every_n_steps, save_weights_only
            As in `ReportCallback`.
        save_on_train_epoch_end
            Without effect: an epoch is saved at its end, after its validation.
        filename, auto_insert_metric_name, enable_version_counter, verbose
            Without effect, as in Ray Train: the file of each checkpoint is ``checkpoint.ckpt``.
        dirpath, train_time_interval
            None: the run directory has the checkpoints, and epochs and steps say when.

        Raises
        ------
        ConfigError
            If one of the last two is given.
        """
        if dirpath is not None:
            raise ConfigError(
                f"checkpointing(dirpath={shown(dirpath)}): the run directory has the checkpoints. "
                f"RunConfig(storage_path=...) says where it is."
            )
        if train_time_interval is not None:
            raise ConfigError(
                f"checkpointing(train_time_interval={train_time_interval!r}): all ranks save after "
                f"the same step. Say after how many: every_n_train_steps=..."
            )
        reports = {
            "checkpoint_every_n_epochs": every_n_epochs,
            "checkpoint_every_n_steps": every_n_train_steps,
            "report_every_n_steps": report_every_n_steps,
            "save_weights_only": save_weights_only,
        }
        kept = None
        if monitor is not None or save_top_k is not None:
            kept = CheckpointConfig(
                num_to_keep=None if save_top_k == -1 else save_top_k,
                checkpoint_score_attribute=monitor,
                checkpoint_score_order=mode,
            )
        return self._with(reports=reports, checkpoint_config=kept)

    def build(self) -> LightningConfig:
        """Return what was collected. Not collective.

        Raises
        ------
        ConfigError
            If there is no module.
        """
        if "module_class" not in self._parts:
            raise ConfigError("LightningConfigBuilder has no module: call module(cls=...).")
        return LightningConfig(**self._parts)

    def _with(self, **parts: Any) -> LightningConfigBuilder:
        self._parts.update(parts)
        return self
