"""State of another form than what it is loaded into, and state that is made when asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hpctrain.bulk.index import INDEX_NAME
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads
from hpctrain.torch import load_state, save_state
from hpctrain.torch.state.load import load_into
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
        (torch.arange(3.0), torch.zeros(5)),
        (torch.arange(3.0), torch.zeros(0)),
        (torch.zeros(0), torch.zeros(5)),
        (torch.arange(3), None),
        (None, torch.zeros(3)),
        ({"amax": [torch.ones(2)], "steps": 3}, {"amax": [], "steps": 0}),
        ({"amax": [], "steps": 3}, {"amax": [torch.ones(2)], "steps": 0}),
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


def test_a_value_that_a_model_does_not_take_is_refused(tmp_path: Path) -> None:
    save_state(tmp_path / "s", model=WithExtraState(3))
    model = nn.ModuleDict({"inner": nn.Linear(3, 3)})
    before = model["inner"].weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"has model\._extra_state, which the state .* not"):
        load_state(tmp_path / "s", model=model)
    assert torch.equal(before, model["inner"].weight)


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.eye(4)).square().sum()
        loss.backward()
        return float(loss.detach())

    return float(optimizer.step(closure) or 0.0)


class Nested(torch.optim.Optimizer):
    """Has lists and dicts as state of a parameter, and something for all of them."""

    def __init__(self, parameters: Any, *, common: bool = False) -> None:
        super().__init__(parameters, {"lr": torch.tensor(0.1)})
        self.common = common

    @torch.no_grad()
    def step(self, closure: Any = None) -> float:
        with torch.enable_grad():
            loss = float(closure())
        if self.common:
            state: Any = self.state
            state["common"] = {"seen": torch.ones(2), "steps": 3}
        for parameter in self.param_groups[0]["params"]:
            own = self.state[parameter]
            own["step"] = own.get("step", 0) + 1
            own.setdefault("factors", [torch.zeros(2, 2), {"right": torch.zeros_like(parameter)}])
            own["factors"][0] += 1
            own["factors"][1]["right"] += parameter.grad
            parameter -= self.param_groups[0]["lr"] * own["factors"][1]["right"]
        return loss


class Counting(torch.optim.Optimizer):
    """Counts, for some parameters or for all of them, and has no other state."""

    def __init__(self, parameters: Any, *, momentum: bool = False) -> None:
        super().__init__(parameters, {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                own = self.state[parameter]
                own["step"] = own.get("step", 0) + 1
                if group["momentum"] and parameter.dim() > 1:
                    own["momentum"] = torch.full_like(parameter, own["step"])


OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3),
    "line search": lambda parameters: torch.optim.LBFGS(
        parameters, max_iter=3, line_search_fn="strong_wolfe"
    ),
    "nested": Nested,
    "counting": Counting,
    "some counting": lambda parameters: Counting(parameters, momentum=True),
}


@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_any_optimizer_goes_on_where_it_was(
    tmp_path: Path, kind: str, named: bool, steps_before: int
) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = _network()
        return model, OPTIMIZERS[kind](model.parameters())

    def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        if named:
            return {"disc": model, "disc_opt": optimizer}
        return {"model": model, "optimizer": optimizer}

    trained, live = made(), made()
    for _ in range(2):
        _step(*trained)
    save_state(tmp_path / "s", **state_of(*trained))
    for _ in range(steps_before):
        _step(*live)
    load_state(tmp_path / "s", **state_of(*live))
    assert _is_same(trained[1].state_dict(), live[1].state_dict())
    assert [_step(*trained) for _ in range(3)] == [_step(*live) for _ in range(3)]
    assert _is_same(dict(trained[0].state_dict()), dict(live[0].state_dict()))


def test_a_learning_rate_becomes_a_tensor_and_a_number_again(tmp_path: Path) -> None:
    rates = {"tensor": torch.tensor(0.5), "number": 0.25}
    for name, rate in rates.items():
        optimizer = torch.optim.AdamW(_network().parameters(), lr=rate, foreach=False)
        save_state(tmp_path / name, opt=optimizer)
    for saved, live in (("tensor", "number"), ("number", "tensor"), ("tensor", "tensor")):
        optimizer = torch.optim.AdamW(_network().parameters(), lr=rates[live], foreach=False)
        load_state(tmp_path / saved, opt=optimizer)
        assert _is_same(optimizer.param_groups[0]["lr"], rates[saved])


@pytest.mark.parametrize("known", [False, True])
def test_state_that_is_of_no_parameter_comes_back_by_a_name_of_its_own(
    tmp_path: Path, known: bool
) -> None:
    model, other = _network(), _network()
    optimizer, live = (Nested(each.parameters(), common=True) for each in (model, other))
    _step(model, optimizer)
    save_state(tmp_path / "s", opt=optimizer)
    if known:
        _step(other, live)
    load_state(tmp_path / "s", opt=live)
    assert _is_same(optimizer.state_dict(), live.state_dict())
    with pytest.raises(ConfigError, match="optimizer has state of the key 'common'"):
        save_state(tmp_path / "t", model=model, optimizer=optimizer)


class OwnForm(torch.optim.AdamW):
    """Has a state_dict of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "more": torch.ones(2)}


def test_an_optimizer_with_a_state_dict_of_its_own_gets_what_that_gave(tmp_path: Path) -> None:
    model = _network()
    optimizer = OwnForm(model.parameters())
    _step(model, optimizer)
    save_state(tmp_path / "s", opt=optimizer)
    live = OwnForm(_network().parameters())
    load_state(tmp_path / "s", opt=live)
    assert _is_same(optimizer.state_dict(), live.state_dict())


@pytest.mark.parametrize("named", [False, True])
def test_state_of_parameters_that_an_optimizer_lacks_is_refused(
    tmp_path: Path, named: bool
) -> None:
    model = _network()
    optimizer = Counting([{"params": [each]} for each in model.parameters()])
    optimizer.step()
    state: dict[str, Any] = {"opt": optimizer}
    save_state(tmp_path / "s", **(state if named else {"model": model, "optimizer": optimizer}))
    fewer = Counting([{"params": [each]} for each in list(model.parameters())[:3]])
    state = {"opt": fewer} if named else {"model": model, "optimizer": fewer}
    with pytest.raises(CheckpointError, match=r"the checkpoint has a group of 1 .*Nothing was"):
        load_state(tmp_path / "s", **state)
    assert not fewer.state


def test_what_is_no_optimizer_is_not_loaded_into_one(tmp_path: Path) -> None:
    save_state(tmp_path / "s", opt={"epoch": 3})
    optimizer = torch.optim.AdamW(_network().parameters())
    with pytest.raises(CheckpointError, match=r"opt is an optimizer, and in the checkpoint it is"):
        load_state(tmp_path / "s", opt=optimizer)


@pytest.mark.parametrize("kind", ["adam", "counting", "some counting"])
def test_an_older_state_is_loaded_into_an_optimizer_that_has_not_stepped(
    tmp_path: Path, kind: str
) -> None:
    model, other = _network(), _network()
    optimizer, live = (OPTIMIZERS[kind](each.parameters()) for each in (model, other))
    _step(model, optimizer)
    save_state(tmp_path / "s", model=model, optimizer=optimizer, again=optimizer)
    _forget_trees(tmp_path / "s")
    load_state(tmp_path / "s", model=other, optimizer=live)
    assert _is_same(optimizer.state_dict(), live.state_dict())
    live = OPTIMIZERS[kind](other.parameters())
    load_state(tmp_path / "s", again=live)
    assert _is_same(optimizer.state_dict(), live.state_dict())


def test_an_older_state_is_loaded_into_an_optimizer_of_the_same_form(tmp_path: Path) -> None:
    model, other = _network(), _network()
    optimizer, live = (OPTIMIZERS["lbfgs"](each.parameters()) for each in (model, other))
    _step(model, optimizer)
    save_state(tmp_path / "s", model=model, optimizer=optimizer)
    _forget_trees(tmp_path / "s")
    _step(other, live)
    load_state(tmp_path / "s", model=other, optimizer=live)
    assert _is_same(optimizer.state_dict(), live.state_dict())


def _forget_trees(directory: Path) -> None:
    path = directory / INDEX_NAME
    index = json.loads(path.read_bytes())
    assert index.pop("trees")
    path.write_text(json.dumps(index))


class Tracker:
    """Keeps whatever it is given."""

    def __init__(self, **kept: Any) -> None:
        self.kept = kept

    def state_dict(self) -> dict[str, Any]:
        return dict(self.kept)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state


@pytest.mark.parametrize("dtype", [torch.complex128, torch.float8_e4m3fnuz])
def test_tensors_of_types_that_files_have_not_are_read_into(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    save_state(tmp_path / "s", tracker=Tracker(a=torch.ones(3).to(dtype)))
    live = torch.zeros(3).to(dtype)
    load_state(tmp_path / "s", tracker=Tracker(a=live))
    assert live.to(torch.complex64).tolist() == [1, 1, 1]


FORMS: list[dict[str, Any]] = [
    {"best": None, "history": []},
    {"best": torch.tensor(1.5), "history": [torch.arange(3), (4, torch.ones(2, 2))]},
    {"best": torch.tensor([1.5]), "history": [], "seen": {3: torch.ones(1), (1, "a"): {"n": 2}}},
    {"best": torch.tensor(2, dtype=torch.uint8), "history": {"empty": torch.zeros(0, 3)}},
    {"best": np.arange(20_000), "history": [np.arange(20_000), np.arange(3)]},
    {"best": 7, "history": [{"$type": torch.ones(2), "value": None}]},
]


@pytest.mark.parametrize("live", FORMS)
@pytest.mark.parametrize("saved", FORMS)
def test_what_has_a_load_state_dict_is_given_what_was_saved_whatever_it_is_now(
    tmp_path: Path, saved: dict[str, Any], live: dict[str, Any]
) -> None:
    save_state(tmp_path / "s", tracker=Tracker(**saved))
    tracker = Tracker(**{key: _emptied(item) for key, item in live.items()})
    load_state(tmp_path / "s", tracker=tracker)
    assert _is_same(saved, tracker.kept)


def _emptied(tree: Any) -> Any:
    """Return a copy, other than what is saved."""
    if isinstance(tree, torch.Tensor | np.ndarray):
        return tree * 0
    if isinstance(tree, dict):
        return {key: _emptied(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map(_emptied, tree))
    return tree


def test_tensors_that_fit_are_read_into_and_others_are_not_touched(tmp_path: Path) -> None:
    save_state(tmp_path / "s", tracker=Tracker(a=torch.ones(3), b=torch.ones(3), c=torch.ones(2)))
    fits, other = torch.zeros(3), torch.zeros(4)
    # One tensor under two names, which had been two.
    tracker = Tracker(a=fits, b=fits, c=other)
    load_state(tmp_path / "s", tracker=tracker)
    assert tracker.kept["a"] is fits
    assert tracker.kept["b"] is not fits
    assert [tracker.kept[key].tolist() for key in "abc"] == [[1] * 3, [1] * 3, [1] * 2]
    assert other.tolist() == [0] * 4


def test_a_dict_gets_what_it_does_not_have_yet(tmp_path: Path) -> None:
    kept = {"w": torch.ones(3), "more": {"n": 1, "list": [torch.ones(2)]}, "best": torch.ones(())}
    save_state(tmp_path / "s", kept=kept)
    weight = torch.zeros(3)
    live: dict[str, Any] = {"w": weight, "best": None}
    load_state(tmp_path / "s", kept=live)
    assert live["w"] is weight
    assert _is_same(kept, live)


@pytest.mark.parametrize(
    ("live", "complaint"),
    [
        ({"old": torch.zeros(2)}, r"has no kept\.old, which the state"),
        ({"more": {"n": 5, "old": 3}}, r"has no kept\.more\.old, which the state"),
        (
            {"more": {"list": [torch.zeros(2), torch.zeros(2)]}},
            r"has no kept\.more\.list\.1, which the state",
        ),
        ({"epoch": torch.zeros(2)}, r"has no kept\.epoch, which the state"),
        ({"w": torch.zeros(4)}, r"kept\.w is float32\[4\], and in .* it is float32\[3\]"),
        ({"more": torch.zeros(2)}, r"has no kept\.more, .* has kept\.more\.list\.0, kept\.more\.n"),
    ],
)
def test_a_dict_that_has_more_is_refused_on_all_ranks_and_nothing_is_changed(
    tmp_path: Path, live: dict[str, Any], complaint: str
) -> None:
    kept = {"w": torch.ones(3), "more": {"n": 1, "list": [torch.ones(2)]}, "epoch": 3}
    save_state(tmp_path / "s", kept=kept)
    before = _emptied(live)

    def refused(comm: ThreadComm) -> str:
        tracker = {"kept": live if comm.rank else {"w": torch.zeros(3)}}
        with pytest.raises(CheckpointError) as caught:
            load_into(tmp_path / "s", model=None, optimizer=None, others=tracker, ranks=comm)
        return str(caught.value)

    first, second = run_on_threads(2, refused)
    assert first == second
    assert re.search(f"{complaint}.*Nothing was changed", first)
    assert _is_same(before, live)


def test_what_has_keys_that_are_no_values_is_loaded_into_the_same(tmp_path: Path) -> None:
    key = object()
    save_state(tmp_path / "s", kept={key: torch.ones(3)})
    live = {key: torch.zeros(3)}
    load_state(tmp_path / "s", kept=live)
    assert live[key].tolist() == [1, 1, 1]
