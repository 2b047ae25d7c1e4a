"""Loggers for ``RunConfig(callbacks=[...])``, in Ray's names, and one for Prometheus.

They run in the executor, one record for a run over all its attempts and jobs, and need no network
by default: ``hpctrain sync`` uploads what they wrote. Importing this imports none of the libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.callbacks.comet import CometLoggerCallback as CometLoggerCallback
    from hpctrain.callbacks.files import CSVLoggerCallback as CSVLoggerCallback
    from hpctrain.callbacks.files import JsonLoggerCallback as JsonLoggerCallback
    from hpctrain.callbacks.logger import LoggerCallback as LoggerCallback
    from hpctrain.callbacks.mlflow import MLflowLoggerCallback as MLflowLoggerCallback
    from hpctrain.callbacks.mlflow import setup_mlflow as setup_mlflow
    from hpctrain.callbacks.prometheus import PrometheusCallback as PrometheusCallback
    from hpctrain.callbacks.tensorboard import TBXLoggerCallback as TBXLoggerCallback
    from hpctrain.callbacks.wandb import WandbLoggerCallback as WandbLoggerCallback
    from hpctrain.callbacks.wandb import setup_wandb as setup_wandb

_HOME_OF = {
    "CSVLoggerCallback": "files",
    "CometLoggerCallback": "comet",
    "JsonLoggerCallback": "files",
    "LoggerCallback": "logger",
    "MLflowLoggerCallback": "mlflow",
    "PrometheusCallback": "prometheus",
    "TBXLoggerCallback": "tensorboard",
    "WandbLoggerCallback": "wandb",
    "setup_mlflow": "mlflow",
    "setup_wandb": "wandb",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
