"""Which predictor a checkpoint is for, where only its path is known."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from hpctrain.bulk.index import INDEX_NAME
from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import ConfigError
from hpctrain.predict.features import FEATURES_NAME, ModelFeatures
from hpctrain.predict.predictor import Predictor
from hpctrain.result import Result
from hpctrain.rundir.paths import RunPaths

# By name: frameworks stand above this module, and are imported when their models are.
_PREDICTORS: Mapping[str, str] = {
    "jax": "hpctrain.jax:JaxPredictor",
    "lightgbm": "hpctrain.lightgbm:LightGBMPredictor",
    "lightning": "hpctrain.lightning:LightningPredictor",
    "sklearn": "hpctrain.sklearn:SklearnPredictor",
    "tensorflow": "hpctrain.tensorflow:TensorflowPredictor",
    "torch": "hpctrain.torch:TorchPredictor",
    "transformers": "hpctrain.huggingface:TransformersPredictor",
    "xgboost": "hpctrain.xgboost:XGBoostPredictor",
}


def find_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a directory, or the newest of a run.

    Not collective.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if not RunPaths(path).plan.exists():
        return Checkpoint.from_directory(path)
    newest = Result.from_path(path).checkpoint
    if newest is None:
        raise ConfigError(f"run {path} has no complete checkpoint. Give a checkpoint's directory.")
    return newest


def find_predictor(checkpoint: Checkpoint, name: str = "") -> type[Predictor]:
    """Return the class that loads a checkpoint.

    Not collective.

    Parameters
    ----------
    checkpoint
        Its ``features.json`` says the framework; a reported state without one is torch's.
    name
        ``module:Class`` of a class of one's own, in place of that.

    Raises
    ------
    ConfigError
        If nothing says what it is, or the class is not a predictor.
    """
    if not name:
        features = ModelFeatures.read(checkpoint.path)
        framework = "" if features is None else features.framework
        if features is None and (checkpoint.path / INDEX_NAME).exists():
            framework = "torch"
        if framework not in _PREDICTORS:
            said = f"framework {framework!r}" if framework else f"no {FEATURES_NAME}"
            raise ConfigError(
                f"{checkpoint.path} has {said}, so its predictor is not known. Name the class, as "
                f"module:Class; {', '.join(_PREDICTORS.values())} come with hpctrain."
            )
        name = _PREDICTORS[framework]
    found = import_name(name)
    if not (isinstance(found, type) and issubclass(found, Predictor)):
        raise ConfigError(f"{name} is not a class that extends hpctrain.predict.Predictor.")
    return found


def import_name(name: str) -> Any:
    """Return what ``module:name`` means; modules may lie in the working directory.

    Not collective.

    Raises
    ------
    ConfigError
        If there is no such thing.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"{name!r}: module:name is needed, as in 'my_models:make_net'.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name!r} cannot be imported: {error}.") from error
