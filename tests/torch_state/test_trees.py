"""State that is made when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hpctrain.torch import load_state, save_state
from hpctrain.torch.state.weights import read_weights


class WithExtraState(nn.Module):
    """Has what no buffer holds, of any form."""

    def __init__(self, extra: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        same = type(one) is type(other) and len(one) == len(other)
        return same and all(map(_is_same, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        (torch.arange(3.0), torch.zeros(3)),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_extra_state_comes_back_whatever_it_was(
    tmp_path: Path, saved: Any, live: Any, compiled: bool
) -> None:
    model = WithExtraState(saved)
    save_state(tmp_path / "s", model=model)
    other = WithExtraState(live)
    wrapped: Any = torch.compile(other) if compiled else other
    load_state(tmp_path / "s", model=wrapped)
    assert _is_same(saved, other.extra)
    assert torch.equal(model.inner.weight, other.inner.weight)
    assert _is_same(dict(model.state_dict()), read_weights(tmp_path / "s"))


class Cloning(nn.Module):
    """Makes its state anew whenever it is asked for it."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3) * value)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight.detach().clone()


def test_a_model_whose_state_is_a_copy_gets_it_back(tmp_path: Path) -> None:
    save_state(tmp_path / "s", model=Cloning(1))
    model = Cloning(2)
    load_state(tmp_path / "s", model=model)
    assert model.weight.tolist() == [1, 1, 1]


def test_a_model_whose_state_is_of_another_type_gets_it_back(tmp_path: Path) -> None:
    def narrow(_: nn.Module, state: dict[str, Any], *rest: Any) -> None:
        for key, value in state.items():
            state[key] = value.to(torch.bfloat16)

    models = nn.Linear(4, 4), nn.Linear(4, 4)
    for model in models:
        model.register_state_dict_post_hook(narrow)
    save_state(tmp_path / "s", model=models[0])
    load_state(tmp_path / "s", model=models[1])
    assert torch.equal(models[1].weight, models[0].weight.to(torch.bfloat16).float())


def test_models_whose_state_is_their_memory_are_given_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    model.register_buffer("empty", torch.zeros(0))
    model.register_buffer("part", model[0].weight.detach()[1:])
    save_state(tmp_path / "s", model=model)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(nn.Module, "load_state_dict", refuse)
    load_state(tmp_path / "s", model=nn.parallel.DataParallel(model))
