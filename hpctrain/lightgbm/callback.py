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

    Every rank gives one to its ``lightgbm.train()``. Metrics are those over all ranks, for the
    callbacks that follow too: with it, ``lightgbm.early_stopping()`` stops all ranks at once. Rank
    0 saves.

    Parameters
    ----------
    metrics
        What is reported: None is all, ``{dataset}-{metric}``; a list of such names, or a mapping of
        new names to them.
    filename
        Name of the model's file in a checkpoint.
    frequency
        Rounds between two checkpoints; 0 saves none in between.
    checkpoint_at_end
        Whether the model is saved after the last round.
    results_postprocessing_fn
        Is given all metrics, and returns what is reported; `metrics` is not used then.
    early_stopping
        When to stop before the last round. Unlike ``lightgbm.early_stopping()`` it saves then.
    validation
        Whether, and how, checkpoints are validated beside the training, as in `hpctrain.report`.
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
        # Before LightGBM's own callbacks, and those of users, so that they see what was reduced.
        # Of the object and not of the class, where LightGBM does not look.
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
            In the first round, if each rank grows a model of its own.
        lightgbm.callback.EarlyStopException
            If boosting is to stop; ``lightgbm.train()`` returns then.
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
        # In place: the list is the one that all callbacks of the round are given.
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
            best = self._rounds.best_round or env.iteration + 1
            raise EarlyStopException(best - 1, results)

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
        What happens after a round.
    taken_over
        Which metrics LightGBM does not compute.
    """

    def __init__(self, rounds: Rounds, taken_over: TakenOver) -> None:
        super().__init__()
        self._taken_over = taken_over
        rounds.maximize = self._is_maximized
        self._rounds = rounds


def saves(features: Features | None, *, filename: str | None = None) -> Callable[..., None]:
    """Return what writes a booster, cut to its best rounds or whole."""

    def save(model: Booster, directory: str, *, num_rounds: int | None) -> None:
        # The default of save_model(): all iterations.
        model.best_iteration = num_rounds or -1
        LightGBMCheckpoint.save(model, directory, features=features, filename=filename)
        model.best_iteration = 0

    return save


def check_one_model(booster: Booster, comm: Communicator) -> None:
    """Refuse models of which each rank has grown its own, by the newest tree. Collective.

    LightGBM grows one on each rank's rows, without a word, where its parameters do not say that
    there are others.

    Raises
    ------
    ConfigError
        On every rank alike.
    """
    if comm.size == 1:
        return
    text = booster.model_to_string(start_iteration=booster.current_iteration() - 1)
    # Not its counts and values: where ranks vote, some are those of each rank's rows.
    splits = [
        line for line in text.splitlines() if line.startswith(("split_feature=", "threshold="))
    ]
    ranks = comm.allgather(hashlib.sha256(repr(splits).encode()).hexdigest())
    if len(set(ranks)) > 1:
        raise ConfigError(
            f"{len(ranks)} ranks have grown {len(set(ranks))} different models, each on its own "
            f"rows. Merge get_network_params() into the params of lightgbm.train(), last; LightGBM "
            f"knows linear_tree in one process only."
        )


def _shares(booster: Any) -> dict[str, Shares]:
    names = [booster._train_data_name, *booster.name_valid_sets]
    datasets = [booster.train_set, *booster.valid_sets]
    return {name: Shares.of(data) for name, data in zip(names, datasets, strict=True)}


def _like(old: Any, new: tuple[str, str, float, bool]) -> Any:
    # Named tuples since LightGBM 4.7.
    return type(old)(*new) if hasattr(old, "_fields") else new
