"""Names of Ray Train that hpctrain does not have, by package, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

_TRAIN_FUNCTION = "call the library in the training function of hpctrain.torch.TorchTrainer."
_VALIDATION = (
    "validate in the training function, and report the metrics with the checkpoint: "
    "report(metrics, checkpoint)."
)
_PLACEMENT = "say what each worker needs with ScalingConfig; Slurm places the workers."
_DATASET_CONFIG = (
    "use DataConfig(datasets_to_split=[...]); shuffle with iter_batches(shuffle=...), and "
    "transform with a preprocessor."
)

_TRACKER = (
    "subclass UserCallback: after_report() gets the metrics in the executor, once a run. "
    "docs/tracking has one for each tracker."
)

INSTEAD: Mapping[str, Mapping[str, str]] = {
    "hpctrain": {
        "CometLoggerCallback": _TRACKER,
        "CheckpointConsistencyMode": "get_all_reported_checkpoints() returns committed "
        "checkpoints.",
        "DatasetConfig": _DATASET_CONFIG,
        "DistributedTrainContext": "use TrainContext, which get_context() returns.",
        "LocalTrainContext": "use TrainContext, which get_context() returns.",
        "LoggingConfig": "set RunConfig(verbose=0, 1 or 2); the output of each rank is in the run "
        "directory, in logs/.",
        "MLflowLoggerCallback": _TRACKER,
        "RayTrainCallback": "subclass UserCallback.",
        "ReportedCheckpointStatus": "each ReportedCheckpoint is committed; there is no other "
        "status.",
        "TrainingIterator": "call fit(), and read Result.metrics_history; to see each report while "
        "the run lasts, give RunConfig(callbacks=[...]) a UserCallback.",
        "ValidationConfig": _VALIDATION,
        "ValidationFn": _VALIDATION,
        "ValidationTaskConfig": _VALIDATION,
        "WandbLoggerCallback": _TRACKER,
        "format_datasets_for_repr": "repr() of a trainer gives a short line.",
        "setup_mlflow": _TRACKER,
        "setup_wandb": _TRACKER,
    },
    "hpctrain.air": {
        "AcquiredResources": _PLACEMENT,
        "DatasetConfig": _DATASET_CONFIG,
        "ResourceRequest": _PLACEMENT,
    },
    "hpctrain.air.config": {"DatasetConfig": _DATASET_CONFIG},
    "hpctrain.mosaic": {
        "MosaicTrainer": "Composer is not integrated: " + _TRAIN_FUNCTION,
    },
    "hpctrain.preprocessors": {
        "SerializablePreprocessorBase": "subclass Preprocessor, which has serialize() and "
        "deserialize().",
    },
    "hpctrain.rl": {
        "RLCheckpoint": "RLlib is not there: save the policy's weights, and give "
        "Checkpoint.from_directory() their directory.",
        "RLPredictor": "RLlib is not there: load the policy in a subclass of "
        "hpctrain.predict.Predictor.",
        "RLTrainer": "RLlib is not there: " + _TRAIN_FUNCTION,
    },
    "hpctrain.tensorflow": {
        "Callback": "use ReportCheckpointCallback.",
    },
    "hpctrain.torch": {
        "TorchDetectionPredictor": "subclass TorchPredictor, and return the boxes, labels and "
        "scores from call_model() as a dict of tensors with one row for each image.",
        "TorchWorkerProfiler": "use torch.profiler.profile() in the training function, and write "
        "its traces into hpctrain.artifact_dir().",
        "TorchXLAConfig": "ranks compute on GPUs and CPUs; use TorchConfig.",
        "TorchftConfig": "use ScalingConfig(num_workers=(fewest, most)): a run that loses a node "
        "goes on without it.",
    },
}
"""Each value follows "... has no NAME:" in the error."""
