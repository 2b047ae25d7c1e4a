"""`LightningLoop`: the training function of a `LightningTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import hpctrain
from hpctrain.errors import ConfigError
from hpctrain.lightning.config import STRATEGIES, LightningConfig
from hpctrain.lightning.package import import_pytorch

TRAIN = "train"
VAL = "val"


@dataclass(frozen=True, kw_only=True)
class LightningLoop:
    """Makes a module and a Trainer on this rank, and fits."""

    config: LightningConfig
    datasets: tuple[str, ...]
    """Names of the datasets that take the place of loaders."""
    iter_config: Mapping[str, Any]
    """Arguments of ``iter_torch_batches()``."""

    def __call__(self) -> None:
        """Fit, from the checkpoint that the run resumes from. Collective."""
        pl = import_pytorch()
        from hpctrain.lightning.callback import ReportCallback
        from hpctrain.lightning.checkpoint import get_checkpoint_path
        from hpctrain.lightning.environment import HpctrainEnvironment
        from hpctrain.lightning.loader import ShardLoader
        from hpctrain.lightning.prepare import prepare_trainer

        config = self.config
        strategy = getattr(pl.strategies, STRATEGIES[config.strategy_name])
        arguments = dict(config.trainer)
        # Logs of loggers, which would lie in the working directory.
        arguments.setdefault("default_root_dir", str(hpctrain.artifact_dir()))
        arguments["plugins"] = [*_as_list(arguments.get("plugins")), HpctrainEnvironment()]
        callbacks = arguments["callbacks"] = _as_list(arguments.get("callbacks"))
        if not any(isinstance(callback, ReportCallback) for callback in callbacks):
            callbacks.append(ReportCallback(**config.reports))
        elif config.reports:
            raise ConfigError(
                "LightningConfigBuilder().checkpointing(...) and trainer(callbacks=["
                "ReportCallback(...)]) both say when checkpoints are saved. Say it once."
            )
        trainer = prepare_trainer(pl.Trainer(strategy=strategy(**config.strategy), **arguments))
        loaders = {
            f"{name}_dataloaders": ShardLoader(
                hpctrain.get_dataset_shard(name), trainer=trainer, arguments=self.iter_config
            )
            for name in self.datasets
        }
        trainer.fit(
            config.module_class(**config.module),
            **{**config.fit_params, **loaders},
            ckpt_path=get_checkpoint_path(),
        )


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
