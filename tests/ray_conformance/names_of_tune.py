"""Names of Ray Tune that are not here, by the reason; what is not listed is here, or private."""

from __future__ import annotations

from hpctrain import callbacks
from hpctrain.ray_names import INSTEAD
from tests.ray_conformance.port import MODULES, module_of

_RUN = "tune.run, which was there before Tuner"
_CLASS = "class Trainable"
_INSIDE = "Trial and the controller of Ray Tune"
_ACTORS = "placement of actors"
_SEARCH = "another search library"
_OLD_SEARCH = "BasicVariantGenerator, ConcurrencyLimiter, Repeater"
_RULES = "PB2, BOHB, replay, ResourceChangingScheduler"
_CALLBACK = "callbacks of Ray Tune"
_STOPPERS = "stoppers"
_REPORTERS = "progress reporters"
_LOGGERS = "loggers of Ray Tune"
_PRIVATE = "private to Ray"

# A name that starts like this; of several the longest counts.
NOT_IN_TUNE = {
    "ray.tune.Callback": _CALLBACK,
    "ray.tune.CLIReporter": _REPORTERS,
    "ray.tune.Experiment": _RUN,
    "ray.tune.ExperimentAnalysis": _RUN,
    "ray.tune.JupyterNotebookReporter": _REPORTERS,
    "ray.tune.PlacementGroupFactory": _ACTORS,
    "ray.tune.ProgressReporter": _REPORTERS,
    "ray.tune.Stopper": _STOPPERS,
    "ray.tune.Trainable": _CLASS,
    "ray.tune.analysis": _RUN,
    "ray.tune.callback": _CALLBACK,
    "ray.tune.cli": _PRIVATE,
    "ray.tune.constants": _PRIVATE,
    "ray.tune.execution": _INSIDE,
    "ray.tune.execution.placement_groups": _ACTORS,
    "ray.tune.experiment": _INSIDE,
    "ray.tune.experiment.Experiment": _RUN,
    "ray.tune.progress_reporter": _REPORTERS,
    "ray.tune.register_env": "RLlib",
    "ray.tune.register_trainable": _RUN,
    "ray.tune.registry": _RUN,
    "ray.tune.run": _RUN,
    "ray.tune.run_experiments": _RUN,
    "ray.tune.schedulers.HyperBandForBOHB": _RULES,
    "ray.tune.schedulers.PB2": _RULES,
    "ray.tune.schedulers.PopulationBasedTrainingReplay": _RULES,
    "ray.tune.schedulers.ResourceChangingScheduler": _RULES,
    "ray.tune.schedulers.hb_bohb": _RULES,
    "ray.tune.schedulers.pb2": _RULES,
    "ray.tune.schedulers.pb2_utils": _RULES,
    "ray.tune.schedulers.pbt.PopulationBasedTrainingReplay": _RULES,
    "ray.tune.schedulers.resource_changing_scheduler": _RULES,
    "ray.tune.search.BasicVariantGenerator": _OLD_SEARCH,
    "ray.tune.search.ConcurrencyLimiter": _OLD_SEARCH,
    "ray.tune.search.Repeater": _OLD_SEARCH,
    "ray.tune.search.SEARCH_ALG_IMPORT": _PRIVATE,
    "ray.tune.search.ax": _SEARCH,
    "ray.tune.search.basic_variant": _OLD_SEARCH,
    "ray.tune.search.bayesopt": _SEARCH,
    "ray.tune.search.bohb": _SEARCH,
    "ray.tune.search.concurrency_limiter": _OLD_SEARCH,
    "ray.tune.search.hebo": _SEARCH,
    "ray.tune.search.hyperopt": _SEARCH,
    "ray.tune.search.nevergrad": _SEARCH,
    "ray.tune.search.repeater": _OLD_SEARCH,
    "ray.tune.search.variant_generator": _OLD_SEARCH,
    "ray.tune.search.zoopt": _SEARCH,
    "ray.tune.stopper": _STOPPERS,
    "ray.tune.syncer": "cloud filesystems",
    "ray.tune.trainable": _CLASS,
    "ray.tune.tune": _RUN,
    "ray.tune.utils": _PRIVATE,
    "ray.tune.utils.mock_trainable": _CLASS,
    "ray.tune.utils.mock_trainable.MOCK_TRAINABLE_NAME": _INSIDE,
    "ray.tune.utils.mock_trainable.register_mock_trainable": _INSIDE,
    "ray.tune.utils.validate_save_restore": _CLASS,
}
# By test file: names that rig.py has for it, and what it needs beside them.
RIGS = {
    "test_trial_scheduler": (
        *("AsyncHyperBandScheduler", "HyperBandScheduler", "MOCK_TRAINABLE_NAME", "MagicMock"),
        *("MedianStoppingRule", "PopulationBasedTraining", "Trial", "register_mock_trainable"),
    ),
    # It sets variables of the environment.
    "test_tuner": ("monkeypatch",),
    "test_tuner_restore": ("monkeypatch",),
}
_HERE = ("ray.tune.trainable.with_parameters", "ray.tune.trainable.with_resources")


def is_refused(whole: str) -> bool:
    """Return whether hpctrain raises an error for a name of Ray that says what to use instead."""
    ours, _, name = module_of(whole).rpartition(".")
    return name in INSTEAD.get(ours, {})


def reason_in_tune(whole: str) -> str | None:
    """Return why a dotted name below ``ray.tune`` is not here, or None."""
    if whole.startswith(_HERE) or whole.startswith("ray.tune.examples."):
        return None
    parts = whole.split(".")
    if whole.startswith("ray.tune.logger."):
        return None if parts[-1] in callbacks.__all__ else _LOGGERS
    for length in range(len(parts), 1, -1):
        if found := NOT_IN_TUNE.get(".".join(parts[:length])):
            return found
    if is_refused(whole):
        return f"{parts[-1]} is not there"
    modules = [".".join(parts[:n]) for n in range(3, len(parts)) if parts[n - 1].islower()]
    return _PRIVATE if any(module not in MODULES for module in modules) else None
