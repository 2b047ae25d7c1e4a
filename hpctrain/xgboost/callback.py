"""`TrainReportCallback`: reports each round of ``xgboost.train()``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xgboost import Booster
from xgboost.callback import TrainingCallback

from hpctrain.checkpoint import Checkpoint
from hpctrain.gbdt.features import Features
from hpctrain.gbdt.rounds import Rounds, select_metrics
from hpctrain.worker.seeding import digest
from hpctrain.xgboost.checkpoint import XGBoostCheckpoint

if TYPE_CHECKING:
    from hpctrain.validation_config import ValidationTaskConfig

# As in xgboost.callback.EarlyStopping.
_MAXIMIZED = ("auc", "pre", "map", "ndcg")

EvalsLog = Mapping[str, Mapping[str, Sequence[Any]]]


class TrainReportCallback(TrainingCallback):
    """Reports each round of ``xgboost.train(callbacks=[...])`` in a training function.

    Every rank passes one to its ``xgboost.train()``. Rank 0 saves.

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
    validation
        Whether, and how, to validate checkpoints during the training, as in `hpctrain.report`.
    """

    CHECKPOINT_NAME = XGBoostCheckpoint.model_file

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = XGBoostCheckpoint.model_file,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, float]], dict[str, Any]] | None = None,
        *,
        validation: bool | ValidationTaskConfig = False,
    ) -> None:
        def save(model: Any, directory: str, *, num_rounds: int | None) -> None:
            XGBoostCheckpoint.save(model, directory, filename=filename)

        super().__init__()
        self._rounds = Rounds(
            save=save, frequency=frequency, at_end=checkpoint_at_end, validation=validation
        )
        self._select = select_metrics(metrics, results_postprocessing_fn)
        self._total: int | None = None
        self._larger: dict[str, bool] = {}

    def after_iteration(self, model: Booster, epoch: int, evals_log: EvalsLog) -> bool:
        """Report the round; return whether boosting must stop. Collective."""
        metrics = _newest(evals_log)
        self._larger = {
            f"{dataset}-{metric}": is_maximized(metric)
            for dataset, by_metric in evals_log.items()
            for metric in by_metric
        }
        return self._rounds.after(
            model,
            model.num_boosted_rounds(),
            metrics,
            self._select(metrics),
            total=self._total,
        )

    def after_training(self, model: Booster) -> Booster:
        """Save the model unless the last round did. Collective."""
        self._rounds.finish(model, model.num_boosted_rounds())
        return model

    @classmethod
    def get_model(
        cls, checkpoint: Checkpoint, filename: str = XGBoostCheckpoint.model_file
    ) -> Booster:
        """Return the booster of a checkpoint. Not collective."""
        with checkpoint.as_directory() as directory:
            booster: Booster = XGBoostCheckpoint.load(directory, filename=filename)
            return booster


class LoopCallback(TrainReportCallback):
    """Reports the rounds of a trainer's own loop.

    Parameters
    ----------
    rounds
        Reports and saves each round.
    total
        Total number of rounds.
    """

    def __init__(self, rounds: Rounds, *, total: int) -> None:
        super().__init__()
        rounds.maximize = lambda name: self._larger[name]
        self._rounds = rounds
        self._total = total
        self._open: tuple[int, EvalsLog] | None = None
        """The round that has begun, until it is reported."""

    def before_iteration(self, model: Booster, epoch: int, evals_log: EvalsLog) -> bool:
        """Record the round. Not collective."""
        self._open = (model.num_boosted_rounds() + 1, evals_log)
        return False

    def after_iteration(self, model: Booster, epoch: int, evals_log: EvalsLog) -> bool:
        """Report the round; return whether boosting must stop. Collective."""
        self._open = None
        return super().after_iteration(model, epoch, evals_log)

    def after_training(self, model: Booster) -> Booster:
        """Save the model unless the last round did. Collective."""
        if self._open is not None:
            # XGBoost calls no further callback after a user's callback stops boosting.
            num_rounds, evals_log = self._open
            self._rounds.after_stop(num_rounds, self._select(_newest(evals_log)))
        return super().after_training(model)


class SeededRounds(TrainingCallback):
    """Seeds each round by its number, so that a resumed run draws the same samples.

    Parameters
    ----------
    params
        Parameters of XGBoost.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        self._seed = params.get("seed", params.get("random_state", 0))
        self._method = params.get("tree_method", "hist")

    @staticmethod
    def is_needed(params: Mapping[str, Any]) -> bool:
        """Return whether rows, columns or trees are drawn. Not collective."""
        return params.get("booster") == "dart" or any(
            name == "subsample" or name.startswith("colsample_") for name in params
        )

    def before_iteration(self, model: Booster, epoch: int, evals_log: EvalsLog) -> bool:
        """Seed the round. Not collective."""
        words = f"{self._seed}/{model.num_boosted_rounds()}".encode()
        seed = int.from_bytes(digest(words, size=4), "little") >> 1
        # XGBoost's updater has a random generator of its own, and seeds it only when tree_method
        # changes. save_config() makes XGBoost apply the change.
        other = "hist" if self._method == "approx" else "approx"
        model.set_param({"tree_method": other, "seed": seed})
        model.save_config()
        model.set_param({"tree_method": self._method})
        return False


def _newest(evals_log: EvalsLog) -> dict[str, float]:
    return {
        f"{dataset}-{metric}": float(values[-1])
        for dataset, by_metric in evals_log.items()
        for metric, values in by_metric.items()
    }


def saves(features: Features) -> Callable[..., None]:
    """Return a function that writes a booster with these features, all or its best rounds."""

    def save(model: Booster, directory: str, *, num_rounds: int | None) -> None:
        booster = model if num_rounds is None else model[:num_rounds]
        XGBoostCheckpoint.save(booster, directory, features=features)

    return save


def is_maximized(metric: str) -> bool:
    """Return whether large values of XGBoost's metric are better. Not collective."""
    return metric != "mape" and metric.startswith(_MAXIMIZED)
