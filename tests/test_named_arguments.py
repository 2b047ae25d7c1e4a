"""A misspelt argument of a trainer or predictor is refused with the name that was meant."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest

import hpctrain
from hpctrain.checks import NamedArguments
from hpctrain.errors import UnknownFieldError
from hpctrain.predict import BatchPredictor, Predictor
from hpctrain.trainer import BaseTrainer, DataParallelTrainer


def public_classes() -> list[type]:
    names = [m.name for m in pkgutil.iter_modules(hpctrain.__path__, "hpctrain.") if m.ispkg]
    modules = [importlib.import_module(n) for n in names if n != "hpctrain.slurm_templates"]
    found = {
        getattr(module, name)
        for module in modules
        for name in getattr(module, "__all__", ())
        if name.endswith(("Trainer", "Predictor"))
    }
    # A BatchPredictor passes what it does not know on to its predictor.
    found = {kind for kind in found if not inspect.isabstract(kind)} - {BatchPredictor}
    return sorted(found | {DataParallelTrainer}, key=lambda c: str(c.__name__))


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_a_misspelt_argument_is_refused_with_the_one_that_was_meant(kind: type) -> None:
    known = "scaling_config" if issubclass(kind, BaseTrainer) else "preprocessor"
    assert known in inspect.signature(kind).parameters
    misspelt = known[0] + known[2] + known[1] + known[3:]
    with pytest.raises(UnknownFieldError) as refused:
        kind(**{misspelt: None})
    assert str(refused.value) == (
        f"{kind.__name__} has no argument {misspelt!r}. Did you mean {known!r}?"
    )


def train() -> None:
    """Train."""


def test_too_many_arguments_by_position_are_refused_with_those_by_name() -> None:
    with pytest.raises(UnknownFieldError, match=r"^DataParallelTrainer\(\): too many positional"):
        DataParallelTrainer(train, {"lr": 0.1})  # type: ignore[misc]


def test_a_forgotten_argument_is_named() -> None:
    with pytest.raises(UnknownFieldError, match=r"missing a required argument: 'train_loop_per_"):
        DataParallelTrainer()  # type: ignore[call-arg]


def test_a_subclass_of_the_user_is_named_and_may_pass_arguments_on() -> None:
    class Mine(DataParallelTrainer):
        def __init__(self, *, rate: float, **rest: Any) -> None:
            super().__init__(train, train_loop_config={"rate": rate}, **rest)

    assert Mine(rate=0.5, metadata={"a": 1}).metadata == {"a": 1}
    with pytest.raises(UnknownFieldError, match=r"^Mine\(\): missing .* 'rate'"):
        Mine(metadata={})  # type: ignore[call-arg]
    with pytest.raises(UnknownFieldError, match=r"has no argument 'metadat'. Did you mean 'metad"):
        Mine(rate=0.5, metadat={})


def test_a_type_error_of_the_constructor_itself_stays_as_it_is() -> None:
    class Broken(NamedArguments):
        def __init__(self) -> None:
            int([])  # type: ignore[call-overload]

    with pytest.raises(TypeError) as raised:
        Broken()
    assert not isinstance(raised.value, UnknownFieldError)
    assert issubclass(Predictor, NamedArguments)
