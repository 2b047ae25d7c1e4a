"""Odd values of every field of every configuration: taken by its rule, or refused in words."""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.config import (
    CheckpointConfig,
    DataConfig,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    SlurmConfig,
    SyncConfig,
)
from hpctrain.errors import ConfigError
from tests.test_config import BACKENDS

CASES = 300


def kinds() -> list[type]:
    found: list[type] = [
        *(CheckpointConfig, DataConfig, FailureConfig, RunConfig, ScalingConfig, SlurmConfig),
        SyncConfig,
    ]
    for name in BACKENDS:
        module, _, kind = f"hpctrain.{name}".rpartition(".")
        found.append(getattr(importlib.import_module(module), kind))
    return found


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class BadPath:
    def __fspath__(self) -> Any:
        return 3


class Unequal:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 10**400, 10**5000, -(10**400), 1.5, -0.0, 1e-300, 1e300),
    *(math.nan, math.inf, -math.inf, Decimal("NaN"), Fraction(1, 3), 1j),
    *("", " ", "a", "a\0b", "a\nb", "\r", "\x1b[2J", "\ud800", "--user=root", "../..", "x" * 10**5),
    *("nan", "1e400", "9" * 400, "0-0", "1:2:3:4", "\u0663", b"", b"a", bytearray(b"a")),
    *((), (1,), (1, 2), (2, 1), (1, 2, 3), (None, None), ("a",), ("",), (b"a",), [], [[]], [None]),
    *([math.nan], ["-\0"], ["-x\n#SBATCH"], ["#SBATCH -x"], ["a", 3], [()], {1}, frozenset()),
    *({}, {"a": 1}, {1: 2}, {"CPU": 10**400}, {"CPU": math.nan}, {"GPU": "1"}, {"memory": 1e300}),
    *({"": 1}, {"loss": math.nan}, {"loss": "low"}, {"a\0": "b"}, {"a": None}, {None: None}),
    *(timedelta(0), timedelta.max, timedelta.min, timedelta(days=10**6)),
    *(Path(), Path("a\nb"), object(), object, int, len, Unshowable(), BadPath(), Unequal(), ...),
    *(
        np.float64("nan"),
        np.int64(3),
        np.array([1, 2]),
        np.array(1),
        np.bool_(True),
        range(2),
        iter(()),
    ),
)


def keeps(kind: type, name: str, value: Any) -> bool:
    """Give a value to a field; return whether it is taken. All else than ConfigError gets out."""
    required = {"module_class": Trainable} if kind.__name__ == "LightningConfig" else {}
    try:
        config = kind(**{**required, name: value})
    except ConfigError as error:
        said = str(error)
        assert kind.__name__ in said
        assert name in said
        assert len(said) < 1500
        return False
    assert sound(getattr(config, name)), (kind, name, value)
    repr(config)
    return True


class Trainable:
    training_step = None


def sound(value: Any) -> bool:
    """Return whether what a field keeps can be used: no NaN, no NUL, no number without a size."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) < 2**63
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and sound(item) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return all(map(sound, value))
    return True


def test_any_value_is_taken_by_a_rule_or_refused_in_words():
    rng = random.Random(23)
    places = [(kind, f.name) for kind in kinds() for f in fields(kind)]
    # Arguments of Lightning are Lightning's to check.
    places = [p for p in places if p[0].__name__ != "LightningConfig" or p[1] in CHECKED]
    cases = [(*rng.choice(places), rng.choice(ODD)) for _ in range(CASES)]
    taken = [keeps(*case) for case in cases]
    # Of values that are as odd as these, few fit.
    assert 0.02 < sum(taken) / len(taken) < 0.3


CHECKED = ("module_class", "strategy_name", "checkpoint_config")


def test_every_odd_value_of_every_field_once():
    places = [(kind, f.name) for kind in kinds() for f in fields(kind)]
    for kind, name in places:
        if kind.__name__ != "LightningConfig" or name in CHECKED:
            for value in ODD:
                keeps(kind, name, value)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        *(
            (SlurmConfig, {name: value})
            for name in ("partition", "account", "qos", "constraint", "reservation", "mem", "site")
            for value in (3, b"a", ["a"], True, "a\0", "a\rb", "  ")
        ),
        (SlurmConfig, {"mpi": None}),
        (SlurmConfig, {"mpi": 3}),
        (SlurmConfig, {"time": True}),
        (SlurmConfig, {"time": timedelta.max}),
        (SlurmConfig, {"setup": None}),
        (SlurmConfig, {"setup": [3]}),
        (SlurmConfig, {"sbatch_args": [3]}),
        (SlurmConfig, {"skip_directives": [""]}),
        (RunConfig, {"name": 3}),
        (RunConfig, {"storage_path": ""}),
        (RunConfig, {"storage_path": "a\0b"}),
        (RunConfig, {"stop": {"loss": math.nan}}),
        (RunConfig, {"stop": {"loss": "low"}}),
        (RunConfig, {"stop": {3: 1.0}}),
        (RunConfig, {"verbose": "loud"}),
        (RunConfig, {"total_time": True}),
        (ScalingConfig, {"resources_per_worker": {1: 2}}),
        (ScalingConfig, {"trainer_resources": {"CPU": "0"}}),
        (ScalingConfig, {"label_selector": {"cpu": 3}}),
        (ScalingConfig, {"accelerator_type": 3, "use_gpu": True}),
        (ScalingConfig, {"num_workers": 10**400}),
        (FailureConfig, {"hang_timeout_s": 10**400}),
        (DataConfig, {"datasets_to_split": [3]}),
        (DataConfig, {"datasets_to_split": np.array(["a", "b"])}),
    ],
)
def test_what_was_taken_though_it_means_nothing_is_refused(kind: type, arguments: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        kind(**arguments)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [({"launcher": "locl"}, "local"), ({"existing": "restrt"}, "restart")],
)
def test_a_choice_that_is_misspelt_is_refused_with_the_one_that_was_meant(
    arguments: dict[str, Any], meant: str
):
    with pytest.raises(ConfigError, match=rf"Did you mean '{meant}'\?"):
        RunConfig(**arguments)


def test_a_field_that_has_to_be_given_is_named():
    module = importlib.import_module("hpctrain.lightning.config")
    with pytest.raises(ConfigError, match="LightningConfig needs module_class"):
        module.LightningConfig()
