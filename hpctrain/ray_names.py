"""Names of Ray Train that hpctrain does not have, by package, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

_TRAIN_FUNCTION = "call the library in the training function of hpctrain.torch.TorchTrainer."
_PLACEMENT = "say what each worker needs with ScalingConfig; Slurm places the workers."
_DATASET_CONFIG = (
    "use DataConfig(datasets_to_split=[...]); shuffle with iter_batches(shuffle=...), and "
    "transform with a preprocessor."
)

_TRACKER = "import it from hpctrain.callbacks."

_NO_CLUSTER = "ranks read their own parts, and there is no cluster to configure: see ScalingConfig."
_NO_OBJECTS = "there is no object store: use from_pandas(), from_numpy() or from_arrow()."
_SOURCE = "hpctrain.data.Source is what reads rows: Dataset(source)."
_EXPORT = "export to Parquet, and read_parquet() it."
_CONVERT = "convert the files to Parquet or HDF5 once."
_WRITERS = "write_parquet(), write_hdf5(), write_csv() and write_numpy() write files."
_TUNE_STATUS = "RunConfig(verbose=1) shows the trials, and so does hpctrain tune status."
_STOP = "use RunConfig(stop={'training_iteration': 10}), or a function of report and metrics."
_OWN_AGGREGATE = "groupby(keys).map_groups(function) computes anything of each group."
_CATALOG = "the files of a catalog are read by their paths."

_OTHER_SEARCH = (
    "there is hpctrain.tune.search.optuna.OptunaSearch; subclass hpctrain.tune.search.Searcher for "
    "another one."
)
_VARIANTS = "leave search_alg out: Tuner tries the variants of param_space."
_LIMIT = "use TuneConfig(max_concurrent_trials=...)."
_REPEAT = "put the seed into param_space: {'seed': tune.grid_search([1, 2, 3])}."
_OTHER_SEARCHES: Mapping[str, Mapping[str, str]] = {
    "hpctrain.tune.search": {
        "BasicVariantGenerator": _VARIANTS,
        "ConcurrencyLimiter": _LIMIT,
        "Repeater": _REPEAT,
        "create_searcher": "construct it: hpctrain.tune.search.optuna.OptunaSearch().",
    },
    "hpctrain.tune.search.ax": {"AxSearch": _OTHER_SEARCH},
    "hpctrain.tune.search.basic_variant": {"BasicVariantGenerator": _VARIANTS},
    "hpctrain.tune.search.bayesopt": {"BayesOptSearch": _OTHER_SEARCH},
    "hpctrain.tune.search.bohb": {"TuneBOHB": _OTHER_SEARCH},
    "hpctrain.tune.search.concurrency_limiter": {"ConcurrencyLimiter": _LIMIT},
    "hpctrain.tune.search.hebo": {"HEBOSearch": _OTHER_SEARCH},
    "hpctrain.tune.search.hyperopt": {"HyperOptSearch": _OTHER_SEARCH},
    "hpctrain.tune.search.nevergrad": {"NevergradSearch": _OTHER_SEARCH},
    "hpctrain.tune.search.repeater": {"Repeater": _REPEAT},
    "hpctrain.tune.search.sample": dict.fromkeys(
        ("BaseSampler", "Grid", "LogUniform", "Normal", "Quantized", "Sampler", "Uniform"),
        "a domain draws by itself: tune.loguniform(1e-4, 1e-1).sample().",
    ),
    "hpctrain.tune.search.variant_generator": dict.fromkeys(
        ("generate_variants", "grid_search", "parse_spec_vars"), _VARIANTS
    ),
    "hpctrain.tune.search.zoopt": {"ZOOptSearch": _OTHER_SEARCH},
}

_TUNE_CALLBACK = "subclass hpctrain.UserCallback; RunConfig(callbacks=[...]) is of each trial."
_GRID = "Tuner.fit() returns a ResultGrid."
_TUNE_ERROR = "errors are those of hpctrain: ConfigError, TrainingFailedError."
_ITSELF = "give Tuner the function itself."
_OF_RLLIB = "it is RLlib's."
_TRIAL = "ResultGrid has a Result for each trial, and hpctrain tune status lists them."
_EXPERIMENT = "use Tuner."
_OTHER_RULE = (
    "there are ASHAScheduler, HyperBandScheduler, MedianStoppingRule and PopulationBasedTraining; "
    "subclass TrialScheduler for another rule."
)
_TUNES_TRAINERS = (
    "a trial starts no trainer: give Tuner the trainer itself, without the callback: "
    "Tuner(trainer, param_space={'train_loop_config': ..., 'scaling_config': ...})."
)
_RESOURCES = "ScalingConfig says what a trial needs."
_TUNE_UTILS: Mapping[str, str] = {
    "wait_for_gpu": "a trial has GPUs of its own, and the trial before it has ended.",
    "validate_save_restore": "a trial is a function that calls report(), or a trainer.",
    **dict.fromkeys(
        (
            *("UtilMonitor", "date_str", "deep_update", "diagnose_serialization"),
            *("flatten_dict", "merge_dicts", "unflattened_lookup", "warn_if_slow"),
        ),
        "it is Ray Tune's own: hpctrain needs nothing in its place.",
    ),
}
_TUNE_MODULES: Mapping[str, Mapping[str, str]] = {
    "hpctrain.tune.analysis": {"ExperimentAnalysis": _GRID},
    "hpctrain.tune.callback": {"Callback": _TUNE_CALLBACK},
    "hpctrain.tune.error": {"TuneError": _TUNE_ERROR},
    "hpctrain.tune.execution.placement_groups": {"PlacementGroupFactory": _RESOURCES},
    "hpctrain.tune.experiment": {"Experiment": _EXPERIMENT, "Trial": _TRIAL},
    "hpctrain.tune.experiment.experiment": {"Experiment": _EXPERIMENT},
    "hpctrain.tune.experiment.trial": {"Trial": _TRIAL},
    "hpctrain.tune.integration.keras": dict.fromkeys(
        ("TuneReportCallback", "TuneReportCheckpointCallback"),
        "use hpctrain.tensorflow.ReportCheckpointCallback.",
    ),
    "hpctrain.tune.integration.lightgbm": {
        "TuneReportCallback": "use TuneReportCheckpointCallback."
    },
    "hpctrain.tune.integration.pytorch_lightning": dict.fromkeys(
        ("TuneCallback", "TuneReportCallback", "TuneReportCheckpointCallback"),
        "use hpctrain.lightning.ReportCallback, which reports the metrics of each epoch.",
    ),
    "hpctrain.tune.integration.ray_train": {"TuneReportCallback": _TUNES_TRAINERS},
    "hpctrain.tune.integration.xgboost": {
        "TuneReportCallback": "use TuneReportCheckpointCallback."
    },
    "hpctrain.tune.progress_reporter": dict.fromkeys(
        ("CLIReporter", "JupyterNotebookReporter", "ProgressReporter"), _TUNE_STATUS
    ),
    "hpctrain.tune.registry": {
        "get_trainable_cls": _ITSELF,
        "register_env": _OF_RLLIB,
        "register_input": _OF_RLLIB,
        "register_trainable": _ITSELF,
    },
    "hpctrain.tune.resources": {"Resources": _RESOURCES},
    "hpctrain.tune.schedulers.hb_bohb": {"HyperBandForBOHB": _OTHER_RULE},
    "hpctrain.tune.schedulers.pb2": {"PB2": _OTHER_RULE},
    "hpctrain.tune.schedulers.resource_changing_scheduler": dict.fromkeys(
        ("DistributeResources", "DistributeResourcesToTopJob", "ResourceChangingScheduler"),
        _OTHER_RULE,
    ),
    "hpctrain.tune.utils": _TUNE_UTILS,
    "hpctrain.tune.utils.util": _TUNE_UTILS,
}

INSTEAD: Mapping[str, Mapping[str, str]] = {
    "hpctrain": {
        "CometLoggerCallback": _TRACKER,
        "CheckpointConsistencyMode": "get_all_reported_checkpoints() returns committed "
        "checkpoints.",
        "DatasetConfig": _DATASET_CONFIG,
        "DistributedTrainContext": "use TrainContext, which get_context() returns.",
        "LocalTrainContext": "use TrainContext, which get_context() returns.",
        "MLflowLoggerCallback": _TRACKER,
        "RayTrainCallback": "subclass UserCallback.",
        "ReportedCheckpointStatus": "each ReportedCheckpoint is committed; its metrics have what "
        "a validation found, once that has ended.",
        "TrainingIterator": "call fit(), and read Result.metrics_history; to see each report while "
        "the run lasts, give RunConfig(callbacks=[...]) a UserCallback.",
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
    "hpctrain.data": {
        "ArrowTensorType": "arrays are columns as they are, tensors in batches of Arrow.",
        "ArrowVariableShapedTensorType": "arrays of unlike shape are objects.",
        "BlockBasedFileDatasink": _WRITERS,
        "Catalog": _CATALOG,
        "CatalogAccessMode": _CATALOG,
        "ClickHouseTableSettings": _EXPORT,
        "DataContext": _NO_CLUSTER,
        "DatabricksUnityCatalog": _CATALOG,
        "DatasetContext": _NO_CLUSTER,
        "DatasetIterator": "use DataIterator.",
        "DatasetSummary": "to_pandas().describe() summarizes columns.",
        "Datasink": _WRITERS,
        "Datasource": _SOURCE,
        "ExecutionOptions": _NO_CLUSTER,
        "ExecutionResources": _NO_CLUSTER,
        "FileShuffleConfig": "iter_batches(shuffle=True) mixes the files anew each epoch.",
        "KafkaAuthConfig": _EXPORT,
        "MixStoppingCondition": "use union(), and random_shuffle().",
        "NodeIdStr": _NO_CLUSTER,
        "Preprocessor": "import it from hpctrain.preprocessors.",
        "RandomSeedConfig": "random_shuffle() has a new order each epoch, and with "
        "seed=7 the same one.",
        "ReadTask": _SOURCE,
        "ReaderFormat": _SOURCE,
        "ResolvedSource": _SOURCE,
        "RowBasedFileDatasink": "loop over iter_rows(), and write a file for each.",
        "SaveMode": "writers refuse a path that exists.",
        "SinkMode": "writers refuse a path that exists.",
        "configure_logging": _NO_CLUSTER,
        "from_arrow_refs": _NO_OBJECTS,
        "from_blocks": _NO_OBJECTS,
        "from_numpy_refs": _NO_OBJECTS,
        "from_pandas_refs": _NO_OBJECTS,
        "from_daft": "from_arrow(frame.to_arrow()).",
        "from_mars": "from_pandas(frame.to_pandas()).",
        "from_modin": "from_pandas(frame.modin.to_pandas()).",
        "from_spark": "let Spark write Parquet, and read_parquet() it.",
        "from_tf": "from_numpy() of what dataset.as_numpy_iterator() gives.",
        "get_pyarrow_version": "use pyarrow.__version__.",
        "list_stats_summaries": _NO_CLUSTER,
        "read_audio": "read_binary_files(), and decode in map().",
        "read_avro": _CONVERT,
        "read_bigquery": _EXPORT,
        "read_clickhouse": _EXPORT,
        "read_databricks_tables": _EXPORT,
        "read_datasource": _SOURCE,
        "read_delta": "from_arrow(deltalake.DeltaTable(path).to_pyarrow_table()).",
        "read_delta_sharing_tables": _EXPORT,
        "read_hudi": _EXPORT,
        "read_iceberg": "from_arrow(table.scan().to_arrow()), of pyiceberg.",
        "read_kafka": _EXPORT,
        "read_lance": "from_arrow(lance.dataset(path).to_table()).",
        "read_lerobot": _CONVERT,
        "read_mcap": _CONVERT,
        "read_mongo": _EXPORT,
        "read_orc": "from_arrow(pyarrow.orc.read_table(path)).",
        "read_snowflake": _EXPORT,
        "read_sql": "from_pandas(pandas.read_sql(...)).",
        "read_tfrecords": _CONVERT,
        "read_unity_catalog": _EXPORT,
        "read_videos": "read_binary_files(), and decode in flat_map().",
        "read_webdataset": "unpack them for read_images(), or convert them to Parquet once.",
        "read_zarr": "convert them to HDF5 once.",
    },
    "hpctrain.data.aggregate": {
        "AbsMax": "with_column('a', ...) and Max, or map_groups().",
        "AggregateFn": _OWN_AGGREGATE,
        "AggregateFnV2": _OWN_AGGREGATE,
        "ApproximateQuantile": _OWN_AGGREGATE,
        "ApproximateTopK": _OWN_AGGREGATE,
        "AsList": _OWN_AGGREGATE,
        "MissingValuePercentage": "divide Count('x', ignore_nulls=True) by Count().",
        "Quantile": _OWN_AGGREGATE,
        "Unique": "Dataset.unique(column), or " + _OWN_AGGREGATE,
        "ValueCounter": "groupby([key, column]).count().",
        "VectorizedAggregateFnV2": _OWN_AGGREGATE,
        "ZeroPercentage": _OWN_AGGREGATE,
    },
    "hpctrain.data.expressions": dict.fromkeys(
        (
            *("Expr", "download", "monotonically_increasing_id", "pyarrow_udf", "random", "star"),
            *("udf", "unnest", "uuid"),
        ),
        "map_batches() and add_column() take any function of a batch.",
    ),
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
    "hpctrain.tune": {
        "CLIReporter": _TUNE_STATUS,
        "Callback": _TUNE_CALLBACK,
        "Experiment": _EXPERIMENT,
        "ExperimentAnalysis": _GRID,
        "JupyterNotebookReporter": _TUNE_STATUS,
        "PlacementGroupFactory": _RESOURCES,
        "ProgressReporter": _TUNE_STATUS,
        "ResumeConfig": "use Tuner.restore(resume_errored=True) or restart_errored=True.",
        "Stopper": "use RunConfig(stop=...), a TrialScheduler, or time_budget_s.",
        "Trainable": "a trial is a function that calls report(), or a trainer.",
        "TuneContext": "use get_context().",
        "TuneError": _TUNE_ERROR,
        "create_scheduler": "construct it: hpctrain.tune.schedulers.ASHAScheduler().",
        "create_searcher": "construct it: hpctrain.tune.search.optuna.OptunaSearch().",
        "register_env": _OF_RLLIB,
        "register_trainable": _ITSELF,
        "run": "use Tuner(trainable, param_space=...).fit().",
        "run_experiments": "use a Tuner for each.",
    },
    **_OTHER_SEARCHES,
    **_TUNE_MODULES,
    "hpctrain.tune.logger": {
        **dict.fromkeys(
            ("CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback"),
            _TRACKER,
        ),
        **dict.fromkeys(
            ("CSVLogger", "JsonLogger", "Logger", "NoopLogger", "TBXLogger", "UnifiedLogger"),
            "each trial writes metrics.jsonl; trackers are callbacks of hpctrain.callbacks.",
        ),
        "pretty_print": "print() shows the metrics of a Result.",
    },
    "hpctrain.tune.stopper": {
        "CombinedStopper": "a dict of RunConfig(stop=...) may have several criteria.",
        "ExperimentPlateauStopper": "use TuneConfig(time_budget_s=...), or a TrialScheduler.",
        "FunctionStopper": "RunConfig(stop=...) takes the function itself: report, metrics.",
        "MaximumIterationStopper": _STOP,
        "Stopper": _STOP,
        "TimeoutStopper": "use TuneConfig(time_budget_s=...).",
        "TrialPlateauStopper": "RunConfig(stop=...) takes a function of report and metrics, which "
        "may keep what it has seen; or use MedianStoppingRule.",
    },
    "hpctrain.tune.schedulers": {
        "create_scheduler": "construct it: hpctrain.tune.schedulers.ASHAScheduler().",
        **dict.fromkeys(
            (
                *("HyperBandForBOHB", "PB2", "PopulationBasedTrainingReplay"),
                "ResourceChangingScheduler",
            ),
            _OTHER_RULE,
        ),
    },
    "hpctrain.torch": {
        "TorchWorkerProfiler": "use torch.profiler.profile() in the training function, and write "
        "its traces into hpctrain.artifact_dir().",
        "TorchXLAConfig": "ranks compute on GPUs and CPUs; use TorchConfig.",
        "TorchftConfig": "use ScalingConfig(num_workers=(fewest, most)): a run that loses a node "
        "goes on without it.",
    },
}
"""Each value follows "... has no NAME:" in the error."""

_SYNC = "checkpoints go straight to storage_path; SyncConfig(scratch_dir=...) is for node disks."

_OWN_PART = "leave it out; each rank reads its own part, and there is no cluster to configure."

INSTEAD_OF_FIELDS: Mapping[str, Mapping[str, str]] = {
    "DataConfig": {
        "enable_shard_locality": _OWN_PART,
        "execution_options": _OWN_PART,
    },
    "FailureConfig": {
        "preemption_grace_s": "set SlurmConfig(stop_notice_s=...) for the time before the end.",
        "relax_collectives_on_preemption": "all ranks stop at the same report; there is no other "
        "way to end.",
    },
    "RunConfig": {
        "local_dir": "give storage_path=, a directory that all nodes see.",
        "progress_reporter": "it is Ray Tune's; verbose=1 shows the progress.",
        "storage_filesystem": "give storage_path=, a directory that all nodes see.",
        "worker_runtime_env": "ranks have the environment of the script; "
        "SlurmConfig(setup=['module load ...', 'export NAME=value']) adds to it.",
    },
    "ScalingConfig": {
        "topology": "it is for TPUs, which are not supported.",
        "use_tpu": "TPUs are not supported.",
    },
    "SyncConfig": {
        "sync_artifacts_on_checkpoint": "set sync_artifacts=True: they are copied with each "
        "checkpoint.",
        "sync_on_checkpoint": _SYNC,
        "sync_period": _SYNC,
        "syncer": _SYNC,
        "upload_dir": "give RunConfig(storage_path=...).",
    },
    "TuneConfig": {
        "chdir_to_trial_dir": "trials run in the directory of the script; "
        "hpctrain.get_context().get_trial_dir() is that of the trial.",
        "reuse_actors": "each trial is a run of its own.",
        "trial_dirname_creator": "the directories are trial_00000, trial_00001, ...",
        "trial_name_creator": "trials are trial_00000, trial_00001, ...; their configurations are "
        "listed by hpctrain tune status.",
    },
    "ValidationConfig": {
        "ray_remote_kwargs": "the validation runs in a process of its own on the node of the "
        "executor, or with slurm_config=SlurmConfig(...) in a job of its own; set use_gpu=True if "
        "it needs GPUs, and task_config=ValidationTaskConfig(timeout_s=...) if it is to end in "
        "time.",
    },
    "TorchConfig": {
        "lighthouse_kwargs": "use ScalingConfig(num_workers=(fewest, most)).",
    },
}
"""By configuration: fields of Ray Train that it does not have. Each value follows "... has no
field NAME:" in the error."""
