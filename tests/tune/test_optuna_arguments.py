"""What OptunaSearch refuses before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError
from hpctrain.tune import TuneConfig
from hpctrain.tune.search.optuna import OptunaSearch

optuna = pytest.importorskip("optuna")
POINTS = [{"x": 0.5}]


@pytest.mark.parametrize("pruner", ["median", 5, True, optuna.pruners.MedianPruner])
def test_a_pruner_is_an_object_that_prunes(pruner: Any) -> None:
    with pytest.raises(ConfigError, match=r"optuna\.pruners is needed.*MedianPruner\(\)"):
        OptunaSearch(pruner=pruner)


@pytest.mark.parametrize("sampler", ["tpe", optuna.samplers.TPESampler])
def test_a_sampler_is_an_object_that_samples(sampler: Any) -> None:
    with pytest.raises(ConfigError, match=r"optuna\.samplers is needed.*TPESampler\(\)"):
        OptunaSearch(sampler=sampler)


@pytest.mark.parametrize("storage", [5, optuna.storages.InMemoryStorage])
def test_a_storage_is_an_object_that_stores(storage: Any) -> None:
    with pytest.raises(ConfigError, match=r"optuna\.storages is needed"):
        OptunaSearch(storage=storage)


@pytest.mark.parametrize("storage", ["study.db", Path("study.db"), ""])
def test_the_address_of_a_file_is_named(storage: Any) -> None:
    with pytest.raises(ConfigError, match=r"Of a file that is 'sqlite:///study\.db'"):
        OptunaSearch(storage=storage)


@pytest.mark.parametrize("name", [5, ""])
def test_the_name_of_a_study_is_text(name: Any) -> None:
    with pytest.raises(ConfigError, match="study_name"):
        OptunaSearch(storage="sqlite:///study.db", study_name=name)


@pytest.mark.parametrize("rewards", [3, "a", [None], [float("nan")], {"x": 1}, [True]])
def test_known_values_are_numbers(rewards: Any) -> None:
    with pytest.raises(ConfigError, match="a list of numbers is needed"):
        OptunaSearch(points_to_evaluate=POINTS, evaluated_rewards=rewards)


@pytest.mark.parametrize("seed", [-1, "x", 1.5, 2**32])
def test_a_seed_is_one_that_samplers_take(seed: Any) -> None:
    with pytest.raises(ConfigError, match="seed"):
        OptunaSearch(seed=seed)


def test_what_numpy_has_is_taken() -> None:
    numpy = pytest.importorskip("numpy")
    OptunaSearch(seed=2**32 - 1)
    OptunaSearch(seed=numpy.int64(3))
    OptunaSearch(points_to_evaluate=POINTS, evaluated_rewards=numpy.array([0.5]))
    OptunaSearch(storage=optuna.storages.InMemoryStorage(), pruner=optuna.pruners.MedianPruner())


def test_a_function_that_returns_no_constants_is_told_what_to_return() -> None:
    search = OptunaSearch(
        space=lambda trial: trial.suggest_float("x", 0, 1), metric="a", mode="min"
    )
    with pytest.raises(ConfigError, match="Return a dict of constants, or None"):
        search.suggest("t0")


def test_the_name_of_a_search_is_shown_as_it_was_given() -> None:
    with pytest.raises(ConfigError, match=r"^TuneConfig\(search_alg='optuna'\): an object"):
        TuneConfig(search_alg="optuna")


def test_an_argument_that_is_not_there_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"OptunaSearch has no argument 'stroage'.*'storage'"):
        OptunaSearch(stroage="sqlite:///study.db")
