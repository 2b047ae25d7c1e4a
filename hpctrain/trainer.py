"""`BaseTrainer` and `DataParallelTrainer`.

Scripts import this before anything is asked of it, so what starts a run is imported by ``fit()``.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.backend import BackendConfig
from hpctrain.checkpoint import Checkpoint, refuse_missing
from hpctrain.checks import NamedArguments, check_type, given_or_default, shown
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError, DamagedFileError
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.train_function import takes_config
from hpctrain.validation_config import ValidationConfig, check_validation_config

if TYPE_CHECKING:
    from hpctrain.launch.handle import RunHandle
    from hpctrain.launch.request import Request
    from hpctrain.plan.spec import RunSpec, WorkerSpec
    from hpctrain.preprocessors import Preprocessor
    from hpctrain.result import Result

# Types of what is no dataset for sure, such as the path of one.
_NO_DATASET = (str, bytes, int, float, type(None))
TrainLoop = Callable[[], Any] | Callable[[dict[str, Any]], Any]


class BaseTrainer(NamedArguments, abc.ABC):
    """What all trainers share: how many workers, how the run is looked after, and its data.

    A class of your own defines `training_loop`, which runs on one rank with ``self.datasets``
    preprocessed. `DataParallelTrainer` runs a training function on many.

    Parameters
    ----------
    scaling_config
        How many workers, and what each of them needs.
    run_config
        What the run is called, where it lands, and how it is looked after.
    datasets
        Datasets by name, for ``get_dataset_shard()``.
    metadata
        JSON values that travel with the run, for ``get_context().get_metadata()``, and with each of
        its checkpoints, for ``checkpoint.get_metadata()``.
    resume_from_checkpoint
        Checkpoint of another run to begin with: what ``get_checkpoint()`` returns at first.
    preprocessor
        Learns from the dataset "train" on the ranks, each of which reads a part, before the
        training function is called; is applied to every dataset, and is stored in every checkpoint.
        One that is fitted is taken as it is.
    """

    _scaling_config_allowed_keys: ClassVar[frozenset[str] | None] = None
    """Fields of ScalingConfig that may differ from their defaults; None allows all."""
    _deleted_checkpoint: Path | None = None
    """What a restored run began with, if that is deleted: its own checkpoints replace it."""

    def __init__(
        self,
        *,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        self.scaling_config = given_or_default("scaling_config", scaling_config, ScalingConfig)
        self.run_config = given_or_default("run_config", run_config, RunConfig)
        if datasets is not None and not isinstance(datasets, Mapping):
            raise ConfigError(
                f"datasets={shown(datasets)} is a {type(datasets).__name__}. Give datasets by "
                f"name: datasets={{'train': ...}}."
            )
        self.datasets = dict(datasets or {})
        for name, dataset in self.datasets.items():
            if isinstance(dataset, _NO_DATASET) and self._is_split(name):
                raise ConfigError(
                    f"datasets={{{name!r}: {shown(dataset)}}} is a {type(dataset).__name__} and "
                    f"has no rows. Give what hpctrain.data makes of it, read_parquet() for example."
                )
        self.metadata = dict(metadata or {})
        self.resume_from_checkpoint = resume_from_checkpoint
        self.preprocessor = preprocessor
        if resume_from_checkpoint is not None:
            check_type("resume_from_checkpoint", resume_from_checkpoint, Checkpoint)
            refuse_missing(resume_from_checkpoint)
        try:
            json.dumps(self.metadata)
        except TypeError as error:
            raise ConfigError(f"metadata={self.metadata!r}: JSON values only: {error}") from error
        if preprocessor is not None:
            # Loads NumPy, which is not to be waited for without a reason.
            from hpctrain.preprocessors.training import check_preprocessor

            check_preprocessor(preprocessor, self.datasets)
        self._check_scaling_config()

    def _is_split(self, name: str) -> bool:
        """Return whether each worker is given a part of a dataset."""
        return True

    def __repr__(self) -> str:
        """Return a short line."""
        return f"{type(self).__name__}(num_workers={self.scaling_config.num_workers})"

    def setup(self) -> None:  # empty unless a trainer has something to prepare
        """Prepare what `training_loop` needs; called before it, on the rank. Not collective."""

    def preprocess_datasets(self) -> None:
        """Apply the fitted preprocessor to the datasets, before `training_loop`. Not collective."""
        if self.preprocessor is not None:
            from hpctrain.preprocessors.training import transformed

            for name, dataset in self.datasets.items():
                self.datasets[name] = transformed(self.preprocessor, name, dataset)

    @abc.abstractmethod
    def training_loop(self) -> Any:
        """Train, on the one rank of the run, and `hpctrain.report`. Not collective."""

    def fit(self) -> Result:
        """Run the training in whichever home this process is in, and return what came out of it.

        Not collective, except where this process already is a rank (``srun python train.py``): then
        every rank must call it.

        Raises
        ------
        ConfigError
            If something is impossible; nothing has been started then.
        LaunchError
            If the ranks, or the job, could not be started.
        TrainingFailedError
            If the run failed or was stopped; ``fit()`` with the same name resumes it.
        """
        from hpctrain.launch.fit import fit, refuse_nested_fit

        refuse_nested_fit("fit")
        return fit(self._request())

    def _request(self) -> Request:
        from hpctrain.worker.training_loop import TrainingLoop

        if self.scaling_config.max_workers > 1:
            raise ConfigError(
                f"{type(self).__name__} runs its training_loop() once, on one rank, and has "
                f"num_workers={self.scaling_config.num_workers}. Leave num_workers out, or "
                f"subclass DataParallelTrainer, which runs a training function on each worker."
            )
        runner = DataParallelTrainer(
            TrainingLoop(self),
            scaling_config=self.scaling_config,
            run_config=self.run_config,
            datasets=self.datasets,
            metadata=self.metadata,
            resume_from_checkpoint=self.resume_from_checkpoint,
            preprocessor=self.preprocessor,
        )
        runner._check_checkpoint_config()
        return replace(runner._request(), trainer=_class_path(type(self)))

    @classmethod
    def can_restore(cls, path: str | PathLike[str]) -> bool:
        """Return whether `path` is a run that a trainer of this class began. Not collective."""
        try:
            plan = read_plan(RunPaths(Path(path)))
        except (OSError, DamagedFileError):
            return False
        return plan.get("trainer") == _class_path(cls) and RunPaths(Path(path)).spec.exists()

    @classmethod
    def restore(cls, path: str | PathLike[str], **changes: Any) -> BaseTrainer:
        """Return a trainer whose ``fit()`` continues the run in `path`.

        Not collective.

        Raises
        ------
        ConfigError
            If the class has no way to make one, as it is without a method of its own.
        """
        raise ConfigError(
            f"{cls.__name__} has no restore() of its own. Construct it as before, with the name "
            f"and the storage path of {path} in its RunConfig: fit() resumes the run."
        )

    def _check_scaling_config(self) -> None:
        allowed = self._scaling_config_allowed_keys
        if allowed is None:
            return
        default = ScalingConfig()
        used = {
            name
            for name in ScalingConfig.__dataclass_fields__
            if getattr(self.scaling_config, name) != getattr(default, name)
        }
        if extra := sorted(used - allowed):
            raise ConfigError(
                f"{type(self).__name__} does not use ScalingConfig fields {extra}. It has "
                f"{sorted(allowed)}."
            )


class DataParallelTrainer(BaseTrainer):
    """Runs the same training function on every worker.

    Parameters
    ----------
    train_loop_per_worker
        The training function: no argument, or one, which is `train_loop_config`.
    train_loop_config
        What the training function is called with.
    backend_config
        Sets a framework up on every rank before the training function is called; by default
        nothing.
    dataset_config
        Which datasets are split over the ranks.
    validation_config
        How checkpoints are validated that are reported with ``report(..., validation=True)``.
    scaling_config, run_config, datasets, metadata, resume_from_checkpoint, preprocessor
        As in `BaseTrainer`.

    Raises
    ------
    ConfigError
        If the training function takes more than one argument, a value has the wrong type, or a
        dataset is to be split that does not exist.
    """

    _backend_argument: ClassVar[str] = "backend_config"
    """What the constructor calls the backend's configuration."""

    def __init__(
        self,
        train_loop_per_worker: TrainLoop,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        backend_config: BackendConfig | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        self.dataset_config = given_or_default("dataset_config", dataset_config, DataConfig)
        super().__init__(
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )
        self.train_loop_per_worker = train_loop_per_worker
        if train_loop_config is not None and not isinstance(train_loop_config, Mapping):
            raise ConfigError(
                f"train_loop_config={train_loop_config!r} is a {type(train_loop_config).__name__}. "
                f"The training function is called with a dict: train_loop_config={{'lr': 0.1}}."
            )
        self.train_loop_config = None if train_loop_config is None else dict(train_loop_config)
        self.backend_config = given_or_default("backend_config", backend_config, BackendConfig)
        check_validation_config(validation_config)
        self.validation_config = validation_config
        self._takes_config = takes_config(train_loop_per_worker)
        _check_names(self.dataset_config.datasets_to_split, self.datasets)

    def _check_checkpoint_config(self) -> None:
        checkpoints = self.run_config.checkpoint_config
        automatic = checkpoints.checkpoint_frequency or checkpoints.checkpoint_at_end
        if automatic and not self._has_loop():
            raise ConfigError(
                "CheckpointConfig(checkpoint_frequency=..., checkpoint_at_end=...) is for trainers "
                "that have the loop. This one runs a training function, which saves by "
                "report(metrics, checkpoint)."
            )

    def get_dataset_config(self) -> DataConfig:
        """Return which datasets are split over the ranks. Not collective."""
        return self.dataset_config

    def _is_split(self, name: str) -> bool:
        split = self.dataset_config.datasets_to_split
        return not self._assigns_datasets() and (split == "all" or name in split)

    def _assigns_datasets(self) -> bool:
        """Return whether a function of the user's says which worker gets what."""
        return type(self.dataset_config).configure is not DataConfig.configure

    def _has_loop(self) -> bool:
        """Return whether the training function is the trainer's own."""
        return False

    def fit(self) -> Result:
        """Run the training function on the workers, and return what came out of it.

        Not collective, except where this process already is a rank (``srun python train.py``): then
        every rank must call it. Errors are those of `BaseTrainer.fit`.
        """
        from hpctrain.launch.fit import refuse_nested_fit

        refuse_nested_fit("fit")
        # Here and not when it is made, as in Ray Train: a RunConfig may be shared by trainers.
        self._check_checkpoint_config()
        self.setup()
        result: Result = self.training_loop()
        return result

    def training_loop(self) -> Any:
        """Hand the training function over to the workers. Not collective."""
        from hpctrain.launch.fit import fit

        return fit(self._request())

    def submit(self) -> RunHandle:
        """Begin the run and return at once; it goes on without this process.

        Not collective. On a login node the run is a job of Slurm. On a laptop, and inside an
        allocation, its executor is a process in the background, and such runs go one after another.
        A run that is there already is treated as by ``fit()``: followed, resumed or left as it is.

        Returns
        -------
        RunHandle
            The run: its state, ``wait()``, ``result()`` and ``cancel()``.

        Raises
        ------
        ConfigError
            If something is impossible, as with ``num_workers=0`` or where this process already is
            a rank; nothing has been started then.
        LaunchError
            If Slurm refused the job.
        """
        from hpctrain.launch.fit import refuse_nested_fit, submit

        refuse_nested_fit("submit")
        self._check_checkpoint_config()
        self.setup()
        return submit(self._request())

    def _request(self) -> Request:
        from hpctrain.launch.request import Request
        from hpctrain.plan.spec import WorkerSpec

        if self.preprocessor is not None:
            from hpctrain.preprocessors.storage import recognize
            from hpctrain.preprocessors.training import check_can_learn

            check_can_learn(self.preprocessor, self.datasets)
            recognize(self.preprocessor)
        resumed = self.resume_from_checkpoint
        resume_from = self._deleted_checkpoint if resumed is None else Path(resumed.path)
        return Request(
            trainer=_class_path(type(self)),
            scaling_config=self.scaling_config,
            run_config=self.run_config,
            worker_spec=WorkerSpec(
                train_loop=self.train_loop_per_worker,
                train_loop_config=self.train_loop_config,
                takes_config=self._takes_config,
                backend_config=self.backend_config,
                datasets=self.datasets,
                datasets_to_split=self.dataset_config.datasets_to_split,
                data_config=self.dataset_config if self._assigns_datasets() else None,
                preprocessor=self.preprocessor,
                metadata=self.metadata,
            ),
            resume_from=resume_from,
            validation_config=self.validation_config,
        )

    @classmethod
    def restore(
        cls,
        path: str | PathLike[str],
        train_loop_per_worker: TrainLoop | None = None,
        train_loop_config: Mapping[str, Any] | None = None,
        datasets: Mapping[str, Any] | None = None,
        preprocessor: Preprocessor | None = None,
        scaling_config: ScalingConfig | None = None,
        **changes: Any,
    ) -> DataParallelTrainer:
        """Return a trainer whose ``fit()`` continues the run in `path`.

        Not collective. It is what constructing the trainer again with the same arguments does, for
        when the script is not at hand: its RunConfig, with budgets, retention, stop rule and
        callbacks, is the stored one too. The stored run is unpickled: open only what is your own.

        A finished run goes on from its last checkpoint where something is replaced that its result
        depends on. Otherwise ``fit()`` returns what came out of it.

        Parameters
        ----------
        path
            The run directory.
        train_loop_per_worker, train_loop_config, datasets, preprocessor, scaling_config
            Replace what the run was begun with. `datasets` must have the same names.
        **changes
            Further arguments of the trainer. ``run_config`` replaces the whole of the stored one
            but name and storage path.

        Raises
        ------
        ConfigError
            If there is no such run, it is another trainer's or writable by others, or dataset
            names differ.
        """
        from hpctrain.launch.stored import stored_request
        from hpctrain.plan import spec
        from hpctrain.plan.spec import RunSpec
        from hpctrain.rundir.trust import read_spec

        paths = RunPaths(Path(path).absolute())
        if not cls.can_restore(path):
            raise ConfigError(
                f"{path} is not a run that {_class_path(cls)} began. 'hpctrain status {path}' says "
                f"what it is."
            )
        plan = read_plan(paths, needs=("run_config", "scaling_config"))
        run_spec = RunSpec.from_bytes(read_spec(paths))
        stored: WorkerSpec = spec.unpack(run_spec.worker)
        run_config, resume_from = stored_request(paths, plan, run_spec, changes.get("run_config"))
        given = (train_loop_per_worker, train_loop_config, datasets, preprocessor, scaling_config)
        if any(value is not None for value in given) or set(changes) - {"run_config"}:
            # What is asked for anew is to be done, although the run may be finished.
            run_config = replace(run_config, existing="resume")
        if datasets is not None and set(datasets) != set(stored.datasets):
            raise ConfigError(
                f"restore(datasets=...) has {sorted(datasets)}, but the run was begun with "
                f"{sorted(stored.datasets)}. Give all of them, and no other."
            )
        begun_with = None
        if resume_from is not None and resume_from.is_dir():
            begun_with = Checkpoint(resume_from)
        arguments = {
            "train_loop_config": stored.train_loop_config
            if train_loop_config is None
            else train_loop_config,
            cls._backend_argument: stored.backend_config,
            "datasets": stored.datasets if datasets is None else datasets,
            "dataset_config": stored.data_config
            or DataConfig(datasets_to_split=stored.datasets_to_split),
            "metadata": stored.metadata,
            "preprocessor": stored.preprocessor if preprocessor is None else preprocessor,
            "scaling_config": scaling_config or _stored_scaling(plan),
            "resume_from_checkpoint": begun_with,
            **_stored_validation(run_spec),
            **changes,
            "run_config": run_config,
        }
        trainer = cls._rebuild(train_loop_per_worker or stored.train_loop, arguments)
        if begun_with is None and "resume_from_checkpoint" not in changes:
            trainer._deleted_checkpoint = resume_from
        return trainer

    @classmethod
    def _rebuild(cls, train_loop: TrainLoop, arguments: dict[str, Any]) -> DataParallelTrainer:
        return cls(train_loop, **arguments)


def _stored_validation(run_spec: RunSpec) -> dict[str, ValidationConfig]:
    """Return the argument of a trainer whose run validates its checkpoints."""
    stored = run_spec.validation
    if stored is None:
        return {}
    from hpctrain.plan import spec

    config = ValidationConfig(
        fn=spec.unpack(stored.fn),
        task_config=stored.task_config,
        use_gpu=stored.use_gpu,
        wait_timeout_s=stored.wait_timeout_s,
        slurm_config=stored.slurm_config,
        resources=stored.resources or {},
        max_jobs=stored.max_jobs,
    )
    return {"validation_config": config}


def _check_names(to_split: str | Sequence[str], datasets: Mapping[str, Any]) -> None:
    unknown = [] if to_split == "all" else [name for name in to_split if name not in datasets]
    if unknown:
        raise ConfigError(
            f"DataConfig(datasets_to_split={list(to_split)!r}): the trainer has no dataset "
            f"{', '.join(map(repr, unknown))}. It has {sorted(datasets) or 'none'}."
        )


def _class_path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _stored_scaling(plan: Mapping[str, Any]) -> ScalingConfig:
    from hpctrain.slurm_config import SlurmConfig

    stored = dict(plan["scaling_config"])
    return ScalingConfig(**{**stored, "slurm": SlurmConfig(**stored["slurm"])})
