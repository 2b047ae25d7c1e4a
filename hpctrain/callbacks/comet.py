"""`CometLoggerCallback`: Comet."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpctrain.callback import RunContext
from hpctrain.callbacks.logger import numbers
from hpctrain.callbacks.position import Position
from hpctrain.callbacks.tracker import TrackerCallback
from hpctrain.metric_names import flatten
from hpctrain.rundir.files import make_directory

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint


class CometLoggerCallback(TrackerCallback):
    """Logs into one experiment of Comet, by ``comet_ml``.

    Offline, which is the default, each job leaves an archive in ``comet/`` of the run directory,
    and ``hpctrain sync`` uploads them as one experiment. Text is logged with ``log_other``.

    Parameters
    ----------
    online
        Whether it is sent to Comet at once.
    tags
        Tags of the experiment. The name of the sweep of which the run is a trial is added.
    save_checkpoints
        Whether each checkpoint is logged as a model.
    **experiment_kwargs
        Further arguments of Comet's experiment: ``project_name``, ``workspace``, ...
    """

    package = "comet_ml"
    extra = "comet"
    tracker = "comet"

    _experiment: Any = None

    def __init__(
        self,
        online: bool = False,
        tags: Sequence[str] | None = None,
        save_checkpoints: bool = False,
        **experiment_kwargs: Any,
    ) -> None:
        self._online = online
        # An archive appears at the end; a process that is killed before leaves none.
        self.is_kept_at_once = online
        self._tags = list(tags or ())
        self._save_checkpoints = save_checkpoints
        self._arguments = experiment_kwargs

    def describe_record(self) -> str:
        """Return what it writes; see `hpctrain.UserCallback`."""
        key = self._arguments.get("experiment_key")
        return f"an experiment of Comet with online={self._online}, experiment_key={key!r}"

    def store(self, run_context: RunContext) -> str:
        """Return where the experiment is begun."""
        place = "online" if self._online else "offline"
        key = self._arguments.get("experiment_key")
        return f"{place} {key}" if key else place

    def begin(self, run_context: RunContext, position: Position) -> None:
        """Create the experiment, or continue it."""
        if self._experiment is not None:
            return
        import comet_ml

        # It advises to upload by hand.
        logging.getLogger("comet_ml").setLevel(logging.ERROR)
        arguments: dict[str, Any] = {
            # This process is the executor: its code, output and arguments are not informative.
            "log_code": False,
            "log_graph": False,
            "log_git_patch": False,
            "parse_args": False,
            "auto_param_logging": False,
            "auto_metric_logging": False,
            "auto_output_logging": False,
            "display_summary_level": 0,
            **self._arguments,
        }
        if not self._online:
            archives = run_context.path / "comet"
            make_directory(archives, below=run_context.path)
            arguments.setdefault("offline_directory", str(archives))
        # 32 letters or digits are needed.
        key = arguments.pop("experiment_key", None) or f"{position.run_id:x<32.50}"
        if position.record is None:
            new = comet_ml.Experiment if self._online else comet_ml.OfflineExperiment
            self._experiment = new(experiment_key=key, **arguments)
            self._experiment.set_name(run_context.name)
        else:
            known = (
                comet_ml.ExistingExperiment if self._online else comet_ml.ExistingOfflineExperiment
            )
            self._experiment = known(previous_experiment=position.record, **arguments)
        if position.record is None and self._online:
            position.begin(self._experiment.get_key())
        position.record = self._experiment.get_key()
        if tags := [*([run_context.sweep] if run_context.sweep else []), *self._tags]:
            self._experiment.add_tags(tags)
        self._experiment.log_parameters(flatten(self.parameters))

    def send(
        self, report: int, time_s: float, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Log the numbers as metrics, text as other values."""
        found = numbers(metrics)
        self._experiment.log_metrics(found, step=report)
        text = {name: value for name, value in metrics.items() if isinstance(value, str)}
        self._experiment.log_others(text)
        self.say_left_out(
            metrics.keys() - found.keys() - text.keys(), "Comet takes numbers and text"
        )
        if checkpoint is not None and self._save_checkpoints:
            self._experiment.log_model(f"checkpoint-{checkpoint.path.name}", str(checkpoint.path))

    def end(self, run_context: RunContext, state: str) -> None:
        """End the experiment, or this part of it."""
        experiment, self._experiment = self._experiment, None
        experiment.log_other("state", state)
        experiment.end()
