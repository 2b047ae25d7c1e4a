"""`BaseTrainer`: what all trainers are given; alone it trains on one rank, with its own loop."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.backend import BackendConfig
from hpctrain.checkpoint import Checkpoint, refuse_missing
from hpctrain.checks import check_type, shown
from hpctrain.config import RunConfig, ScalingConfig
from hpctrain.errors import ConfigError, DamagedFileError
from hpctrain.function_run import FunctionRun, class_path
from hpctrain.path_string import expand_home
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan

if TYPE_CHECKING:
    from hpctrain.launch.request import Request
    from hpctrain.plan.spec import WorkerSpec
    from hpctrain.preprocessors import Preprocessor

# Types of what is no dataset for sure, such as the path of one.
_NO_DATASET = (str, bytes, int, float, type(None))


class BaseTrainer(FunctionRun):
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
        super().__init__(scaling_config=scaling_config, run_config=run_config)
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

    def _request(self) -> Request:
        if self.preprocessor is not None:
            from hpctrain.preprocessors.storage import recognize
            from hpctrain.preprocessors.training import check_can_learn

            check_can_learn(self.preprocessor, self.datasets)
            recognize(self.preprocessor)
        resumed = self.resume_from_checkpoint
        resume_from = self._deleted_checkpoint if resumed is None else Path(resumed.path)
        return replace(super()._request(), resume_from=resume_from)

    def _make_worker_spec(self) -> WorkerSpec:
        from hpctrain.plan.spec import WorkerSpec
        from hpctrain.worker.training_loop import TrainingLoop

        if self.scaling_config.max_workers > 1:
            raise ConfigError(
                f"{type(self).__name__} runs its training_loop() once, on one rank, and has "
                f"num_workers={self.scaling_config.num_workers}. Leave num_workers out, or "
                f"subclass DataParallelTrainer, which runs a training function on each worker."
            )
        return WorkerSpec(
            train_loop=TrainingLoop(self),
            takes_config=False,
            backend_config=BackendConfig(),
            datasets=self.datasets,
            preprocessor=self.preprocessor,
            metadata=self.metadata,
        )

    @classmethod
    def can_restore(cls, path: str | PathLike[str]) -> bool:
        """Return whether `path` is a run that a trainer of this class began. Not collective."""
        run = RunPaths(expand_home(path))
        try:
            plan = read_plan(run)
        except (OSError, DamagedFileError):
            return False
        return plan.get("trainer") == class_path(cls) and run.spec.exists()

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


# Pickles and digests of training functions have it by this name.
BaseTrainer.__module__ = "hpctrain.trainer"
