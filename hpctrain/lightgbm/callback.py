"""`TrainReportCallback`: reports each round of ``lightgbm.train()``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightgbm import Booster
from lightgbm.callback import CallbackEnv, EarlyStopException

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import ConfigError
from hpctrain.gbdt.boosting import EarlyStopping
from hpctrain.gbdt.features import Features
from hpctrain.gbdt.rounds import Patience, Rounds, select_metrics
from hpctrain.lightgbm.checkpoint import LightGBMCheckpoint
from hpctrain.lightgbm.metrics import Shares, TakenOver, reduce_results
from hpctrain.worker.context import active_worker
from hpctrain.world import Communicator

if TYPE_CHECKING:
    from hpctrain.validation_config import ValidationTaskConfig


class TrainReportCallback:
    """Reports each round of ``lightgbm.train(callbacks=[...])`` in a training function.

    Every rank passes one to its ``lightgbm.train()``. Metrics are those over all ranks, also for
    later callbacks: with it, ``lightgbm.early_stopping()`` stops all ranks at once. Rank 0 saves.

    Parameters
    ----------
    metrics
        Metrics to report: a list of names, ``{dataset}-{metric}``, or a mapping of new names to
        these. None is all.
    filename
        Name of the model's file in a checkpoint.
    frequency
        Rounds between two checkpoints; 0 saves no checkpoint before the end.
    checkpoint_at_end
        Whether to save the model after the last round.
    results_postprocessing_fn
        Takes all metrics, and returns those to report, in place of `metrics`.
    early_stopping
        When to stop before the last round. Unlike ``lightgbm.early_stopping()`` it then saves.
    validation
        Whether, and how, to validate checkpoints during the training, as in `hpctrain.report`.
    """

    CHECKPOINT_NAME = LightGBMCheckpoint.model_file

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = LightGBMCheckpoint.model_file,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, float]], dict[str, Any]] | None = None,
        early_stopping: EarlyStopping | None = None,
        *,
        validation: bool | ValidationTaskConfig = False,
    ) -> None:
        # Run before LightGBM's and users' callbacks, so that they get the reduced metrics. These
        # are attributes of the instance because LightGBM ignores those of the class.
        self.order = -1_000_000
        self.before_iteration = False
        self._rounds = Rounds(
            save=saves(None, filename=filename),
            frequency=frequency,
            at_end=checkpoint_at_end,
            patience=None if early_stopping is None else Patience(early_stopping),
            maximize=self._is_maximized,
            validation=validation,
        )
        self._select = select_metrics(metrics, results_postprocessing_fn)
        self._shares: dict[str, Shares] = {}
        self._larger: dict[str, bool] = {}
        self._is_one_model = False
        self._taken_over = TakenOver(params={})

    def __call__(self, env: CallbackEnv) -> None:
        """Report the round. Collective.

        Raises
        ------
        ConfigError
            In the first round, if each rank trains a model of its own.
        lightgbm.callback.EarlyStopException
            If boosting must stop; it makes ``lightgbm.train()`` return.
        """
        results = env.evaluation_result_list or []
        if not self._shares:
            self._shares = _shares(env.model)
        comm = active_worker("TrainReportCallback").comm
        if not self._is_one_model:
            check_one_model(env.model, comm)  # type: ignore[arg-type]  # not in cv()
            self._is_one_model = True
        reduced = reduce_results(results, self._shares, comm) if results else []
        reduced = self._taken_over.in_order(reduced)
        # In place, because all callbacks of the round share this list.
        results[:] = [_like(old, new) for old, new in zip(results, reduced, strict=True)]
        self._larger.update({f"{name}-{metric}": larger for name, metric, _, larger in reduced})
        metrics = {f"{name}-{metric}": value for name, metric, value, _ in reduced}
        is_last = self._rounds.after(
            env.model,
            env.iteration + 1,
            metrics,
            self._select(metrics),
            total=env.end_iteration,
        )
        if is_last and env.iteration + 1 < env.end_iteration:
            raise EarlyStopException(self._rounds.rounds_to_keep - 1, results)

    @classmethod
    def get_model(
        cls, checkpoint: Checkpoint, filename: str = LightGBMCheckpoint.model_file
    ) -> Booster:
        """Return the booster of a checkpoint. Not collective."""
        with checkpoint.as_directory() as directory:
            booster: Booster = LightGBMCheckpoint.load(directory, filename=filename)
            return booster

    def _is_maximized(self, name: str) -> bool:
        return self._larger[name]


class LoopCallback(TrainReportCallback):
    """Reports the rounds of a trainer's own loop.

    Parameters
    ----------
    rounds
        Reports and saves each round.
    taken_over
        Metrics that hpctrain computes in place of LightGBM.
    """

    def __init__(self, rounds: Rounds, taken_over: TakenOver) -> None:
        super().__init__()
        self._taken_over = taken_over
        rounds.maximize = self._is_maximized
        self._rounds = rounds


def saves(features: Features | None, *, filename: str | None = None) -> Callable[..., None]:
    """Return a function that writes a booster, all or its best rounds."""

    def save(model: Booster, directory: str, *, num_rounds: int | None) -> None:
        # With -1 save_model() writes all iterations.
        model.best_iteration = num_rounds or -1
        LightGBMCheckpoint.save(model, directory, features=features, filename=filename)
        model.best_iteration = 0

    return save


def check_one_model(booster: Booster, comm: Communicator) -> None:
    """Check by the newest tree that all ranks train the same model. Collective.

    Without the parameters of the network, LightGBM silently trains a model on each rank's rows.

    Raises
    ------
    ConfigError
        On every rank, if models differ.
    """
    if comm.size == 1:
        return
    text = booster.model_to_string(start_iteration=booster.current_iteration() - 1)
    # Counts and values may differ: with tree_learner=voting some are those of each rank's rows.
    splits = [
        line for line in text.splitlines() if line.startswith(("split_feature=", "threshold="))
    ]
    ranks = comm.allgather(hashlib.sha256(repr(splits).encode()).hexdigest())
    if len(set(ranks)) > 1:
        raise ConfigError(
            f"{len(ranks)} ranks have trained {len(set(ranks))} different models, each on its own "
            f"rows. Merge get_network_params() into the params of lightgbm.train(), last, and "
            f"leave linear_tree out, which LightGBM supports in one process only."
        )


def _shares(booster: Any) -> dict[str, Shares]:
    names = [booster._train_data_name, *booster.name_valid_sets]
    datasets = [booster.train_set, *booster.valid_sets]
    return {name: Shares.of(data) for name, data in zip(names, datasets, strict=True)}


def _like(old: Any, new: tuple[str, str, float, bool]) -> Any:
    # Results are named tuples since LightGBM 4.7.
    return type(old)(*new) if hasattr(old, "_fields") else new
