"""Train on many nodes with what every centre has: Slurm, MPI and a parallel filesystem.

Small modules define the public names, which are imported at first use, so that ``import hpctrain``
stays fast, and safe on login nodes where ``import mpi4py.MPI`` aborts the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain import uncaught as _uncaught
from hpctrain.lazy_names import at_first_use
from hpctrain.version import __version__ as __version__

if TYPE_CHECKING:
    from hpctrain.backend import Backend as Backend
    from hpctrain.backend import BackendConfig as BackendConfig
    from hpctrain.base_trainer import BaseTrainer as BaseTrainer
    from hpctrain.callback import RunContext as RunContext
    from hpctrain.callback import UserCallback as UserCallback
    from hpctrain.checkpoint import Checkpoint as Checkpoint
    from hpctrain.checkpoint import CheckpointUploadMode as CheckpointUploadMode
    from hpctrain.checkpoint import ReportedCheckpoint as ReportedCheckpoint
    from hpctrain.config import CheckpointConfig as CheckpointConfig
    from hpctrain.config import DataConfig as DataConfig
    from hpctrain.config import FailureConfig as FailureConfig
    from hpctrain.config import LoggingConfig as LoggingConfig
    from hpctrain.config import RunConfig as RunConfig
    from hpctrain.config import SyncConfig as SyncConfig
    from hpctrain.constants import TRAIN_DATASET_KEY as TRAIN_DATASET_KEY
    from hpctrain.container import Container as Container
    from hpctrain.errors import CheckpointError as CheckpointError
    from hpctrain.errors import ConfigError as ConfigError
    from hpctrain.errors import HpctrainError as HpctrainError
    from hpctrain.errors import LaunchError as LaunchError
    from hpctrain.errors import NodeLostError as NodeLostError
    from hpctrain.errors import PreemptionError as PreemptionError
    from hpctrain.errors import RunStoppedError as RunStoppedError
    from hpctrain.errors import SupersededError as SupersededError
    from hpctrain.errors import TrainingFailedError as TrainingFailedError
    from hpctrain.errors import UnavailableNameError as UnavailableNameError
    from hpctrain.errors import WorkerContextError as WorkerContextError
    from hpctrain.errors import WorkerError as WorkerError
    from hpctrain.errors import WorkerHangError as WorkerHangError
    from hpctrain.execute.backend_executor import BackendExecutor as BackendExecutor
    from hpctrain.execute.worker_group import WorkerGroup as WorkerGroup
    from hpctrain.launch.handle import RunHandle as RunHandle
    from hpctrain.launch.handle import wait as wait
    from hpctrain.result import Result as Result
    from hpctrain.scaling_config import ScalingConfig as ScalingConfig
    from hpctrain.slurm_config import SlurmConfig as SlurmConfig
    from hpctrain.trainer import DataParallelTrainer as DataParallelTrainer
    from hpctrain.validation_config import ValidationConfig as ValidationConfig
    from hpctrain.validation_config import ValidationFn as ValidationFn
    from hpctrain.validation_config import ValidationTaskConfig as ValidationTaskConfig
    from hpctrain.worker.context import artifact_dir as artifact_dir
    from hpctrain.worker.context import checkpoint_dir as checkpoint_dir
    from hpctrain.worker.context import (
        get_all_reported_checkpoints as get_all_reported_checkpoints,
    )
    from hpctrain.worker.context import get_checkpoint as get_checkpoint
    from hpctrain.worker.context import get_context as get_context
    from hpctrain.worker.context import get_dataset_shard as get_dataset_shard
    from hpctrain.worker.context import get_preemption_info as get_preemption_info
    from hpctrain.worker.context import heartbeat as heartbeat
    from hpctrain.worker.context import report as report
    from hpctrain.worker.context import should_stop as should_stop
    from hpctrain.worker.train_context import PreemptionInfo as PreemptionInfo
    from hpctrain.worker.train_context import TrainContext as TrainContext
    from hpctrain.world import Communicator as Communicator
    from hpctrain.world import World as World

    ControllerError = LaunchError
    SessionMisuseError = WorkerContextError
    WorkerGroupError = WorkerError
    NCCLHangError = WorkerHangError

_HOME_OF = {
    "Backend": "backend",
    "BackendConfig": "backend",
    "BackendExecutor": "execute.backend_executor",
    "BaseTrainer": "base_trainer",
    "Checkpoint": "checkpoint",
    "CheckpointConfig": "config",
    "CheckpointError": "errors",
    "CheckpointUploadMode": "checkpoint",
    "Communicator": "world",
    "ConfigError": "errors",
    "Container": "container",
    "ControllerError": "errors:LaunchError",
    "DataConfig": "config",
    "DataParallelTrainer": "trainer",
    "FailureConfig": "config",
    "HpctrainError": "errors",
    "LaunchError": "errors",
    "LoggingConfig": "config",
    "NCCLHangError": "errors:WorkerHangError",
    "NodeLostError": "errors",
    "PreemptionError": "errors",
    "PreemptionInfo": "worker.train_context",
    "ReportedCheckpoint": "checkpoint",
    "Result": "result",
    "RunConfig": "config",
    "RunContext": "callback",
    "RunHandle": "launch.handle",
    "RunStoppedError": "errors",
    "ScalingConfig": "scaling_config",
    "SessionMisuseError": "errors:WorkerContextError",
    "SlurmConfig": "slurm_config",
    "SupersededError": "errors",
    "SyncConfig": "config",
    "TRAIN_DATASET_KEY": "constants",
    "TrainContext": "worker.train_context",
    "TrainingFailedError": "errors",
    "UnavailableNameError": "errors",
    "UserCallback": "callback",
    "ValidationConfig": "validation_config",
    "ValidationFn": "validation_config",
    "ValidationTaskConfig": "validation_config",
    "WorkerContextError": "errors",
    "WorkerError": "errors",
    "WorkerGroup": "execute.worker_group",
    "WorkerGroupError": "errors:WorkerError",
    "WorkerHangError": "errors",
    "World": "world",
    "artifact_dir": "worker.context",
    "checkpoint_dir": "worker.context",
    "get_all_reported_checkpoints": "worker.context",
    "get_checkpoint": "worker.context",
    "get_context": "worker.context",
    "get_dataset_shard": "worker.context",
    "get_preemption_info": "worker.context",
    "heartbeat": "worker.context",
    "report": "worker.context",
    "should_stop": "worker.context",
    "wait": "launch.handle",
}

__all__ = [*sorted(_HOME_OF), "__version__"]

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)

_uncaught.install()
