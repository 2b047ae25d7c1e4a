"""`TransformersTrainer`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import given_or_default
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.data.optional import require
from hpctrain.errors import ConfigError
from hpctrain.huggingface.accelerate_trainer import AccelerateTrainer
from hpctrain.torch.config import TorchConfig
from hpctrain.trainer import TrainLoop

if TYPE_CHECKING:
    import transformers

    from hpctrain.preprocessors import Preprocessor

TRAIN = "train"
EVALUATION = "evaluation"


class TransformersTrainer(AccelerateTrainer):
    """Trains with a `transformers.Trainer` on every worker.

    Parameters
    ----------
    trainer_init_per_worker
        Called on every rank with the datasets "train" and "evaluation", or None, and
        `trainer_init_config` as keywords. Returns the `transformers.Trainer`, which is prepared
        (`prepare_trainer`), and trained.
    trainer_init_config
        Further arguments of the function.
    torch_config
        How torch.distributed is set up.
    datasets
        "train" and "evaluation": datasets of `hpctrain.data`, or what a `transformers.Trainer`
        takes.
    dataset_config
        May split nothing: a `transformers.Trainer` shares its datasets out over the ranks itself.
    scaling_config, run_config, metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.BaseTrainer`.

    Raises
    ------
    ConfigError
        If the function does not take these arguments, or a dataset has another name.

    Examples
    --------
    ::

        def make_trainer(train_dataset, eval_dataset, epochs):
            return transformers.Trainer(
                model=AutoModelForSequenceClassification.from_pretrained("bert-base-cased"),
                args=TrainingArguments("unused", num_train_epochs=epochs, save_strategy="epoch"),
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
            )

        TransformersTrainer(
            make_trainer,
            trainer_init_config={"epochs": 3},
            datasets={"train": train, "evaluation": held_out},
            scaling_config=ScalingConfig(num_workers=4, use_gpu=True),
        ).fit()
    """

    def __init__(
        self,
        trainer_init_per_worker: Callable[..., transformers.Trainer],
        *,
        trainer_init_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        _check_function(trainer_init_per_worker, trainer_init_config or {})
        if others := sorted(set(datasets or {}) - {TRAIN, EVALUATION}):
            raise ConfigError(
                f"datasets={others}: a transformers.Trainer is given {TRAIN!r} and {EVALUATION!r}. "
                f"Open others in trainer_init_per_worker."
            )
        if dataset_config is None:
            dataset_config = DataConfig(datasets_to_split=[])
        if given_or_default("dataset_config", dataset_config, DataConfig).datasets_to_split:
            raise ConfigError(
                f"dataset_config={dataset_config!r}: a transformers.Trainer shares its datasets "
                f"out over the ranks itself. Leave dataset_config out."
            )
        super().__init__(
            TransformersLoop(trainer_init_per_worker),
            train_loop_config=trainer_init_config,
            torch_config=torch_config,
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )

    @classmethod
    def restore(  # type: ignore[override]  # the names are Ray Train's
        cls,
        path: str | PathLike[str],
        trainer_init_per_worker: Callable[..., transformers.Trainer] | None = None,
        trainer_init_config: Mapping[str, Any] | None = None,
        datasets: Mapping[str, Any] | None = None,
        preprocessor: Preprocessor | None = None,
        scaling_config: ScalingConfig | None = None,
        **changes: Any,
    ) -> TransformersTrainer:
        """Return a trainer whose ``fit()`` continues the run in `path`.

        Not collective. The stored run is unpickled: open only what is your own.

        Parameters
        ----------
        path
            The run directory.
        trainer_init_per_worker, trainer_init_config, datasets, preprocessor, scaling_config
            Replace what the run was begun with. `datasets` must have the same names.
        **changes
            Further arguments of the trainer.

        Raises
        ------
        ConfigError
            If there is no such run, it belongs to another trainer, or dataset names differ.
        """
        loop = (
            None if trainer_init_per_worker is None else TransformersLoop(trainer_init_per_worker)
        )
        restored = super().restore(
            path, loop, trainer_init_config, datasets, preprocessor, scaling_config, **changes
        )
        assert isinstance(restored, TransformersTrainer)
        return restored

    @classmethod
    def _rebuild(cls, train_loop: TrainLoop, arguments: dict[str, Any]) -> TransformersTrainer:
        assert isinstance(train_loop, TransformersLoop)
        own = dict(arguments)
        own["trainer_init_config"] = own.pop("train_loop_config")
        return cls(train_loop.trainer_init, **own)


@dataclass(frozen=True)
class TransformersLoop:
    """The training function: makes the trainer, prepares it, and trains."""

    trainer_init: Callable[..., transformers.Trainer]

    def __call__(self, config: dict[str, Any]) -> dict[str, float]:
        """Train, and return the metrics of ``transformers.Trainer.train()``. Collective."""
        transformers = require("transformers", to="by TransformersTrainer", extra="huggingface")
        from hpctrain.huggingface.prepare import prepare_trainer

        trainer: object = self.trainer_init(_dataset(TRAIN), _dataset(EVALUATION), **config)
        if not isinstance(trainer, transformers.Trainer):
            raise ConfigError(
                f"trainer_init_per_worker returned a {type(trainer).__name__}. A "
                f"transformers.Trainer is needed."
            )
        metrics: dict[str, float] = prepare_trainer(trainer).train().metrics
        return metrics


def _dataset(name: str) -> Any:
    import hpctrain
    from hpctrain.huggingface.rows import EvaluationRows, TrainingRows, as_dataset, is_ours
    from hpctrain.worker.context import active_worker

    if name not in active_worker("TransformersTrainer").datasets:
        return None
    dataset = hpctrain.get_dataset_shard(name)
    if not is_ours(dataset):
        return dataset
    whole = as_dataset(dataset)
    return TrainingRows(whole) if name == TRAIN else EvaluationRows(whole)


def _check_function(function: Any, config: Mapping[str, Any]) -> None:
    if not callable(function):
        raise ConfigError(
            f"trainer_init_per_worker={function!r} is not a function. Give the function itself, "
            f"without calling it."
        )
    try:
        inspect.signature(function).bind(None, None, **config)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"trainer_init_per_worker is called as {getattr(function, '__name__', 'it')}"
            f"(train_dataset, eval_dataset{''.join(f', {name}=...' for name in config)}), and does "
            f"not take that: {error}. The names come from trainer_init_config."
        ) from error
