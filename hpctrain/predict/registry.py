"""The predictor for a checkpoint of which only the path is known."""

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

# Names, not classes: this layer must not import the packages of frameworks.
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
        raise ConfigError(
            f"run {path} has no complete checkpoint. Give the directory of a checkpoint."
        )
    return newest


def find_predictor(checkpoint: Checkpoint, name: str = "") -> type[Predictor]:
    """Return the class that loads a checkpoint.

    Not collective.

    Parameters
    ----------
    checkpoint
        Its ``features.json`` names the framework; a reported state without one is torch's.
    name
        ``module:Class`` of another predictor.

    Raises
    ------
    ConfigError
        If the framework is unknown, or the class is not a predictor.
    """
    if not name:
        features = ModelFeatures.read(checkpoint.path)
        framework = "" if features is None else features.framework
        if features is None and (checkpoint.path / INDEX_NAME).exists():
            framework = "torch"
        if framework not in _PREDICTORS:
            said = f"framework {framework!r}" if framework else f"no {FEATURES_NAME}"
            raise ConfigError(
                f"{checkpoint.path} has {said}, so its predictor is unknown. Name the class as "
                f"module:Class; hpctrain has {', '.join(_PREDICTORS.values())}."
            )
        name = _PREDICTORS[framework]
    found = import_name(name)
    if not (isinstance(found, type) and issubclass(found, Predictor)):
        raise ConfigError(
            f"{name} is not a class that extends hpctrain.predict.Predictor. Name one that does."
        )
    return found


def import_name(name: str) -> Any:
    """Return the object that ``module:name`` names; modules may be in the working directory.

    Not collective.

    Raises
    ------
    ConfigError
        If it cannot be imported.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(
            f"{name!r} is not of the form module:name. Give one, as in 'my_models:make_net'."
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name!r} cannot be imported: {error}. Check the name, and that the module is "
            f"installed or in the working directory."
        ) from error
