"""Settings of a backend name its class, which the module of the backend has."""

from __future__ import annotations

import importlib

import pytest

from hpctrain.backend import Backend, BackendConfig

PACKAGES = ["horovod", "huggingface", "jax", "lightgbm", "tensorflow", "torch", "xgboost"]


@pytest.mark.parametrize("package", PACKAGES)
def test_settings_lead_to_the_class_of_their_package(package: str) -> None:
    module = importlib.import_module(f"hpctrain.{package}.config")
    (config,) = (
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, BackendConfig)
        if one.__module__ == module.__name__
    )
    backend = config().backend_cls
    assert issubclass(backend, Backend)
    assert backend.__module__.startswith(f"hpctrain.{package}.")


def test_plain_settings_lead_to_a_backend_that_does_nothing() -> None:
    assert BackendConfig().backend_cls is Backend
