"""`Rounds`: reports, checkpoints and early stopping after each round, for any library."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import hpctrain
from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import ConfigError
from hpctrain.gbdt.boosting import TRAIN, EarlyStopping
from hpctrain.metric_names import explain_unknown

if TYPE_CHECKING:
    from hpctrain.validation_config import ValidationTaskConfig

STATE_FILE = "boosting.json"


Select = Callable[[Mapping[str, float]], Mapping[str, Any]]


class Save(Protocol):
    """Writes a model of the library into a directory."""

    def __call__(self, model: Any, directory: str, *, num_rounds: int | None) -> None:
        """Write the first rounds of a model, or all of them. Not collective."""


class Patience:
    """Early stopping: how many rounds have passed without a better value.

    Parameters
    ----------
    config
        The rule.
    state
        `state` at the checkpoint that the run resumes from.
    """

    def __init__(self, config: EarlyStopping, state: Mapping[str, Any] | None = None) -> None:
        self._config = config
        self.best: float | None = None
        """Best value so far."""
        self.best_round = 0
        """Number of rounds at the best value."""
        if state is not None:
            self.best, self.best_round = state["best"], state["best_round"]

    @property
    def state(self) -> dict[str, Any]:
        """State to store in a checkpoint."""
        return {"best": self.best, "best_round": self.best_round}

    def is_over(
        self, metrics: Mapping[str, float], num_rounds: int, *, maximize: Callable[[str], bool]
    ) -> bool:
        """Return whether boosting should stop after a round. Not collective.

        Raises
        ------
        ConfigError
            If the metric is not among those of the round.
        """
        name = self._config.metric or default_metric(metrics)
        if name not in metrics:
            raise ConfigError(
                f"EarlyStopping(metric={name!r}): no round has that metric. "
                f"{explain_unknown(name, metrics)}"
            )
        larger = maximize(name) if self._config.mode is None else self._config.mode == "max"
        value = metrics[name]
        if self.best is None or math.isnan(self.best):
            is_better = self.best is None or not math.isnan(value)
        else:
            gain = value - self.best if larger else self.best - value
            is_better = gain > self._config.min_delta
        if is_better:
            self.best, self.best_round = value, num_rounds
        return num_rounds - self.best_round >= self._config.rounds


def default_metric(metrics: Mapping[str, float]) -> str:
    """Return the last metric of the last dataset that is not ``train``, if there is one."""
    if not metrics:
        raise ConfigError(
            "early stopping needs a metric, but the parameters disable all of them. Name one in "
            "params."
        )
    others = [name for name in metrics if not name.startswith(f"{TRAIN}-")]
    return (others or list(metrics))[-1]


class Rounds:
    """Reports each round, saves checkpoints, and decides when to stop; the same on every rank.

    Rank 0 saves its model: all ranks have the same one.

    Parameters
    ----------
    save
        Writes a model.
    frequency
        Rounds between two checkpoints; 0 saves no checkpoint before the end.
    at_end
        Whether to save a checkpoint after the last round.
    patience
        Early stopping, if any.
    maximize
        Returns whether large values of a metric are better.
    validation
        Whether, and how, to validate its checkpoints, as in `hpctrain.report`.
    """

    def __init__(
        self,
        *,
        save: Save,
        frequency: int,
        at_end: bool,
        patience: Patience | None = None,
        maximize: Callable[[str], bool] = lambda name: False,
        validation: bool | ValidationTaskConfig = False,
    ) -> None:
        self._save = save
        self._frequency = frequency
        self._at_end = at_end
        self._patience = patience
        self._validation = validation
        self.maximize = maximize
        """Returns whether large values of a metric are better."""
        self._is_root = hpctrain.get_context().get_world_rank() == 0
        self._metrics: dict[str, Any] = {}
        self._saved = self._done = 0
        self._is_over = False

    @property
    def rounds_to_keep(self) -> int:
        """Rounds of the final model: up to the best one if early stopping ended it, else all."""
        patience = self._patience
        return patience.best_round if patience is not None and self._is_over else self._done

    def after(
        self,
        model: Any,
        num_rounds: int,
        metrics: Mapping[str, float],
        shown: Mapping[str, Any],
        *,
        total: int | None = None,
    ) -> bool:
        """Report a round, and return whether it was the last. Collective.

        Parameters
        ----------
        model
            The model after `num_rounds` rounds.
        metrics
            Values by ``{dataset}-{metric}``, the same on every rank.
        shown
            Metrics to report.
        total
            Total number of rounds, if known.
        """
        patience = self._patience
        is_over = patience is not None and patience.is_over(
            metrics, num_rounds, maximize=self.maximize
        )
        self._is_over = is_over
        self._done = num_rounds
        self._metrics = {**shown, "training_iteration": num_rounds}
        if patience is not None:
            self._metrics["best_round"] = patience.best_round
        due = self._frequency > 0 and num_rounds % self._frequency == 0
        if due or (self._at_end and (is_over or num_rounds == total)):
            self._report_model(model, is_over=is_over)
        else:
            hpctrain.report(self._metrics)
        if is_over:
            return True
        if hpctrain.should_stop():
            # Save the rounds since the last checkpoint.
            self._save_newer(model, wanted=self._at_end or self._frequency > 0)
            return True
        return False

    def after_stop(self, num_rounds: int, shown: Mapping[str, Any]) -> None:
        """Record the last round, which a user's callback ended. Collective.

        `finish` follows, and reports it with the model.
        """
        self._done = num_rounds
        self._metrics = {**shown, "training_iteration": num_rounds}
        if not self._at_end:
            hpctrain.report(self._metrics)

    def finish(self, model: Any, num_rounds: int) -> None:
        """Save the final model, unless the last checkpoint has it. Collective.

        Parameters
        ----------
        num_rounds
            Rounds of the model: a user's callback may keep fewer than were trained.
        """
        if self._at_end and self._done and not self._is_over and self._saved != num_rounds:
            fewer = num_rounds < self._done
            if fewer:
                self._metrics["best_round"] = num_rounds
            self._report_model(model, is_over=False, best=num_rounds if fewer else None)

    def _save_newer(self, model: Any, *, wanted: bool) -> None:
        if wanted and self._saved < self._done:
            self._report_model(model, is_over=False)

    def _report_model(self, model: Any, *, is_over: bool, best: int | None = None) -> None:
        patience = self._patience
        if patience is not None and is_over:
            best = patience.best_round
        self._saved = self._done if best is None else best
        if not self._is_root:
            hpctrain.report(self._metrics)
            return
        state = {
            "rounds": self._saved,
            "is_over": is_over,
            "early_stopping": None if patience is None else patience.state,
            "metrics": self._metrics,
        }
        with hpctrain.checkpoint_dir() as directory:
            self._save(model, directory, num_rounds=best)
            text = json.dumps(state, default=_plain)
            (Path(directory) / STATE_FILE).write_text(text, encoding="utf-8")
            checkpoint = Checkpoint.from_directory(directory)
            hpctrain.report(self._metrics, checkpoint, validation=self._validation)


def read_state(directory: str) -> dict[str, Any]:
    """Return a checkpoint's state of boosting. Not collective."""
    path = Path(directory) / STATE_FILE
    if not path.exists():
        return {"is_over": False, "early_stopping": None}
    state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return state


def report_again(
    checkpoint: Checkpoint, state: Mapping[str, Any], *, done: int, validation: bool
) -> None:
    """Report a checkpoint that is finished already, unless this run has made it. Collective.

    Parameters
    ----------
    checkpoint
        A checkpoint of `done` rounds.
    state
        Its state, from `read_state`.
    validation
        Whether to validate it, as in `hpctrain.report`.
    """
    context = hpctrain.get_context()
    if checkpoint.path.is_relative_to(context.get_storage()):
        return
    metrics = state.get("metrics", {"training_iteration": done})
    if context.get_world_rank() == 0:
        hpctrain.report(metrics, checkpoint, validation=validation)
    else:
        hpctrain.report(metrics)


def _plain(value: Any) -> Any:
    return value.item() if getattr(value, "size", 0) == 1 else str(value)


def select_metrics(
    metrics: str | Sequence[str] | Mapping[str, str] | None,
    postprocess: Callable[[dict[str, float]], Mapping[str, Any]] | None,
) -> Select:
    """Return a function that selects the metrics to report of a round. Not collective."""

    def select(found: Mapping[str, float]) -> Mapping[str, Any]:
        if postprocess is not None:
            return postprocess(dict(found))
        if metrics is None:
            return found
        if isinstance(metrics, Mapping):
            names = dict(metrics)
        else:
            names = {name: name for name in ([metrics] if isinstance(metrics, str) else metrics)}
        for name in names.values():
            if name not in found:
                raise ConfigError(
                    f"TrainReportCallback(metrics=...) names {name!r}, which no round has. "
                    f"{explain_unknown(name, found)}"
                )
        return {new: found[name] for new, name in names.items()}

    return select
