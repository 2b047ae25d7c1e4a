"""Every public name of Ray Train is here, or raises an error that says what to use instead.

``public_names.json`` lists the names that Ray's modules export (``__all__``, or what is marked
PublicAPI, DeveloperAPI or Deprecated), and the versions 2.6, 2.44, 2.52 and 2.60 that have them.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hpctrain
from hpctrain.errors import UnavailableNameError
from hpctrain.ray_names import INSTEAD

NAMES = json.loads(Path(__file__).with_name("public_names.json").read_text())

# Where a script imports them from; the longest prefix counts.
MODULES = {
    "ray.air": "hpctrain.air",
    "ray.air.checkpoint": "hpctrain.air.checkpoint",
    "ray.air.config": "hpctrain.air.config",
    "ray.air.integrations": "hpctrain",
    "ray.air.integrations.keras": "hpctrain.tensorflow",
    "ray.air.result": "hpctrain.air.result",
    "ray.air.session": "hpctrain.air.session",
    "ray.data.preprocessor": "hpctrain.preprocessors",
    "ray.data.preprocessors": "hpctrain.preprocessors",
    "ray.train": "hpctrain",
    "ray.train.batch_predictor": "hpctrain.predict",
    "ray.train.collective": "hpctrain.collective",
    "ray.train.gbdt_trainer": "hpctrain.gbdt",
    "ray.train.horovod": "hpctrain.horovod",
    "ray.train.huggingface": "hpctrain.huggingface",
    "ray.train.huggingface.transformers": "hpctrain.huggingface.transformers",
    "ray.train.lightgbm": "hpctrain.lightgbm",
    "ray.train.lightning": "hpctrain.lightning",
    "ray.train.mosaic": "hpctrain.mosaic",
    "ray.train.predictor": "hpctrain.predict",
    "ray.train.rl": "hpctrain.rl",
    "ray.train.sklearn": "hpctrain.sklearn",
    "ray.train.tensorflow": "hpctrain.tensorflow",
    "ray.train.tensorflow.keras": "hpctrain.tensorflow.keras",
    "ray.train.torch": "hpctrain.torch",
    "ray.train.v2.jax": "hpctrain.jax",
    "ray.train.v2.lightgbm": "hpctrain.lightgbm",
    "ray.train.v2.tensorflow": "hpctrain.tensorflow",
    "ray.train.v2.torch": "hpctrain.torch",
    "ray.train.v2.xgboost": "hpctrain.xgboost",
    "ray.train.xgboost": "hpctrain.xgboost",
}
# Not installed in every environment.
FRAMEWORKS = ("torch", "transformers", "lightning", "xgboost", "lightgbm", "keras", "jax")


def counterpart(module):
    while module not in MODULES:
        module = module.rpartition(".")[0]
    return MODULES[module]


@pytest.mark.parametrize("module", sorted(NAMES))
def test_a_public_name_is_there_or_says_what_to_use_instead(module):
    here = counterpart(module)
    for name in NAMES[module]:
        instead = INSTEAD.get(here, {}).get(name)
        if instead is None:
            # Not imported: its framework may not be installed.
            assert name in importlib.import_module(here).__all__, f"{module}.{name}"
            continue
        with pytest.raises(UnavailableNameError) as refusal:
            exec(f"from {here} import {name}", {})
        assert str(refusal.value) == f"{here} has no {name}: {instead}"


@pytest.mark.parametrize("module", sorted({m for m in MODULES.values() if "jax" not in m}))
def test_a_name_that_is_listed_can_be_imported(module):
    package = importlib.import_module(module)
    for name in package.__all__:
        try:
            getattr(package, name)
        except (ImportError, hpctrain.ConfigError) as error:
            missing = str(error)
            assert any(framework in missing for framework in FRAMEWORKS), missing


def test_no_name_is_both_there_and_refused():
    for module, refused in INSTEAD.items():
        assert not set(importlib.import_module(module).__all__) & set(refused)


def test_a_name_that_nobody_knows_is_an_attribute_error():
    assert not hasattr(hpctrain, "Nonsense")
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        exec("from hpctrain import Nonsense", {})


def test_another_name_of_a_class_is_that_class():
    assert hpctrain.WorkerGroupError is hpctrain.WorkerError
    error = hpctrain.WorkerGroupError("rank 3 failed", {3: ValueError("bad")})
    assert isinstance(error.worker_failures[3], ValueError)
    assert isinstance(error, hpctrain.TrainingFailedError)


def test_the_facades_import_no_framework():
    modules = sorted({"hpctrain.session", *MODULES.values()} - {"hpctrain.preprocessors"})
    script = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module(module)
heavy = {{"torch", "mpi4py", "numpy", "pandas", "xgboost", "transformers"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True)
