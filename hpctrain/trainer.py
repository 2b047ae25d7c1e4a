"""`DataParallelTrainer`: the same training function on every worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.backend import BackendConfig
from hpctrain.base_trainer import BaseTrainer as BaseTrainer
from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import given_or_default
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.function_run import class_path
from hpctrain.path_string import expand_home
from hpctrain.rundir.paths import RunPaths
from hpctrain.train_function import takes_config
from hpctrain.validation_config import ValidationConfig, check_validation_config

if TYPE_CHECKING:
    from hpctrain.launch.request import Request
    from hpctrain.plan.spec import WorkerSpec
    from hpctrain.preprocessors import Preprocessor

TrainLoop = Callable[[], Any] | Callable[[dict[str, Any]], Any]


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

    def get_dataset_config(self) -> DataConfig:
        """Return which datasets are split over the ranks. Not collective."""
        return self.dataset_config

    def _is_split(self, name: str) -> bool:
        split = self.dataset_config.datasets_to_split
        return not self._assigns_datasets() and (split == "all" or name in split)

    def _assigns_datasets(self) -> bool:
        """Return whether a function of the user's says which worker gets what."""
        return type(self.dataset_config).configure is not DataConfig.configure

    def _check_before_run(self) -> None:
        super()._check_before_run()
        self.setup()

    def _launch_run(self) -> Any:
        return self.training_loop()

    def training_loop(self) -> Any:
        """Hand the training function over to the workers. Not collective."""
        return super()._launch_run()

    def _request(self) -> Request:
        return replace(super()._request(), validation_config=self.validation_config)

    def _make_worker_spec(self) -> WorkerSpec:
        from hpctrain.plan.spec import WorkerSpec

        return WorkerSpec(
            train_loop=self.train_loop_per_worker,
            train_loop_config=self.train_loop_config,
            takes_config=self._takes_config,
            backend_config=self.backend_config,
            datasets=self.datasets,
            datasets_to_split=self.dataset_config.datasets_to_split,
            data_config=self.dataset_config if self._assigns_datasets() else None,
            preprocessor=self.preprocessor,
            metadata=self.metadata,
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
        from hpctrain.launch.stored import read_stored

        if not cls.can_restore(path):
            raise ConfigError(
                f"{path} is not a run that {class_path(cls)} began. 'hpctrain status {path}' says "
                f"what it is."
            )
        stored = read_stored(RunPaths(expand_home(path).absolute()), changes.get("run_config"))
        worker, run_config = stored.worker_spec, stored.run_config
        given = (train_loop_per_worker, train_loop_config, datasets, preprocessor, scaling_config)
        if any(value is not None for value in given) or set(changes) - {"run_config"}:
            # What is asked for anew is to be done, although the run may be finished.
            run_config = replace(run_config, existing="resume")
        if datasets is not None and set(datasets) != set(worker.datasets):
            raise ConfigError(
                f"restore(datasets=...) has {sorted(datasets)}, but the run was begun with "
                f"{sorted(worker.datasets)}. Give all of them, and no other."
            )
        begun_with = None
        if stored.resume_from is not None and stored.resume_from.is_dir():
            begun_with = Checkpoint(stored.resume_from)
        arguments = {
            "train_loop_config": worker.train_loop_config
            if train_loop_config is None
            else train_loop_config,
            cls._backend_argument: worker.backend_config,
            "datasets": worker.datasets if datasets is None else datasets,
            "dataset_config": worker.data_config
            or DataConfig(datasets_to_split=worker.datasets_to_split),
            "metadata": worker.metadata,
            "preprocessor": worker.preprocessor if preprocessor is None else preprocessor,
            "scaling_config": scaling_config or stored.scaling_config(),
            "resume_from_checkpoint": begun_with,
            **changes,
            "run_config": run_config,
        }
        if stored.validation_config is not None:
            # Some trainers have no such argument.
            arguments.setdefault("validation_config", stored.validation_config)
        trainer = cls._rebuild(train_loop_per_worker or worker.train_loop, arguments)
        if begun_with is None and "resume_from_checkpoint" not in changes:
            trainer._deleted_checkpoint = stored.resume_from
        return trainer

    @classmethod
    def _rebuild(cls, train_loop: TrainLoop, arguments: dict[str, Any]) -> DataParallelTrainer:
        return cls(train_loop, **arguments)


def _check_names(to_split: str | Sequence[str], datasets: Mapping[str, Any]) -> None:
    unknown = [] if to_split == "all" else [name for name in to_split if name not in datasets]
    if unknown:
        raise ConfigError(
            f"DataConfig(datasets_to_split={list(to_split)!r}): the trainer has no dataset "
            f"{', '.join(map(repr, unknown))}. It has {sorted(datasets) or 'none'}."
        )
