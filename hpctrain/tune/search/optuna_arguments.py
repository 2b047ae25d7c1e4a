"""What the arguments of `OptunaSearch` may be."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike, fspath
from typing import Any

from hpctrain.checks import check_count, check_text, is_number, plain_number, shown
from hpctrain.errors import ConfigError

# Of numpy's RandomState, with which samplers draw.
SEEDS = 2**32


def check_study(storage: Any, study_name: Any) -> None:
    """Refuse what cannot be a storage of Optuna's, or the name of a study. Not collective.

    Raises
    ------
    ConfigError
        If it cannot.
    """
    if study_name is not None:
        check_text("OptunaSearch(study_name=...)", study_name)
        if storage is None:
            raise ConfigError(
                f"OptunaSearch(study_name={shown(study_name)}): a study in memory has no other "
                f"name. Give a storage too, such as 'sqlite:///study.db'."
            )
    if storage is None:
        return
    if isinstance(storage, PathLike) or (isinstance(storage, str) and ":" not in storage):
        path = fspath(storage)
        meant = f"sqlite:///{path if isinstance(path, str) and path else 'study.db'}"
        raise ConfigError(
            f"OptunaSearch(storage={shown(storage)}): a storage is one of optuna.storages, or its "
            f"address. Of a file that is {meant!r}."
        )
    if not isinstance(storage, str):
        _check_object("storage", storage, "create_new_study", "InMemoryStorage()")


def check_sampler(sampler: Any, seed: Any) -> None:
    """Refuse what is no sampler of Optuna's, or no seed. Not collective.

    Raises
    ------
    ConfigError
        If it is not, or both are given.
    """
    if sampler is not None and seed is not None:
        raise ConfigError(
            "OptunaSearch(sampler=..., seed=...): the seed is of the default sampler. Give "
            "yours its own, and leave seed out."
        )
    if sampler is not None:
        _check_object("sampler", sampler, "sample_relative", "TPESampler()")
    seed = plain_number(seed)
    if type(seed) is int and seed >= SEEDS:
        raise ConfigError(f"OptunaSearch(seed={seed}): it must be {SEEDS - 1} or less.")
    if seed is not None and not (type(seed) is int and seed >= 2**31):
        check_count("OptunaSearch(seed=...)", seed, at_least=0)


def check_pruner(pruner: Any) -> None:
    """Refuse what is no pruner of Optuna's. Not collective.

    Raises
    ------
    ConfigError
        If it is not.
    """
    if pruner is not None:
        _check_object("pruner", pruner, "prune", "MedianPruner()")


def check_rewards(rewards: Any, points: Any, *, space_is_function: bool) -> list[float]:
    """Return the known values of points as plain numbers. Not collective.

    Raises
    ------
    ConfigError
        If one is no number, or points and values are not as many.
    """
    if rewards is None:
        return []
    is_many = isinstance(rewards, Iterable) and not isinstance(rewards, (str, bytes, dict))
    values = [plain_number(value) for value in rewards] if is_many else []
    if not is_many or not all(map(is_number, values)):
        raise ConfigError(
            f"OptunaSearch(evaluated_rewards={shown(rewards)}): a list of numbers is needed, one "
            f"for each of points_to_evaluate. Leave it out where values are not known."
        )
    count = len(points or ())
    if values and (space_is_function or len(values) != count):
        raise ConfigError(
            f"OptunaSearch(evaluated_rewards=...) has {len(values)} values for {count} "
            f"points_to_evaluate. One is needed for each, and a space that is no function."
        )
    return [float(value) for value in values]


def _check_object(name: str, value: Any, method: str, example: str) -> None:
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise ConfigError(
            f"OptunaSearch({name}={shown(value)}): an object of optuna.{name}s is needed, such as "
            f"optuna.{name}s.{example}."
        )
