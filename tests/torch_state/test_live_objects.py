"""What is loaded stays what it was to its owner: shared, sharded, set up; and what is refused."""

from __future__ import annotations

import enum
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import distributed, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import SGD, AdamW

from hpctrain.bulk.index import INDEX_NAME
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads
from hpctrain.torch import StateReader, StateWriter, load_state, save_state
from hpctrain.torch.state import load as loading
from hpctrain.torch.state.load import load_into

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


class Own:
    """Keeps a tree, and counts how often it was given one."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.given = 0

    def state_dict(self) -> Any:
        return self.tree

    def load_state_dict(self, tree: Any) -> None:
        self.tree = tree
        self.given += 1


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", ["optimizer", "opt"])
@pytest.mark.parametrize("has_stepped", [True, False])
def test_a_rate_that_groups_share_stays_shared(
    tmp_path: Path, name: str, has_stepped: bool
) -> None:
    def make(rate: float) -> tuple[nn.Sequential, AdamW]:
        model = _network()
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
        return model, AdamW(groups, lr=torch.tensor(rate), foreach=False)

    model, optimizer = make(0.5)
    _step(model, optimizer)
    save_state(tmp_path / "s", model=model, **{name: optimizer})
    other, loaded = make(0.1)
    if has_stepped:
        _step(other, loaded)
    load_state(tmp_path / "s", model=other, **{name: loaded})
    rates = [group["lr"] for group in loaded.param_groups]
    assert [rate.item() for rate in rates] == [0.5, 0.5]
    assert rates[0] is rates[1]


@pytest.mark.parametrize("there", [["a", "b"], ["a"], []])
def test_what_was_one_tensor_is_one_again(tmp_path: Path, there: list[str]) -> None:
    one = torch.ones(3)
    save_state(tmp_path / "s", x=Own({"a": one, "b": one}))
    other = Own(dict.fromkeys(there, torch.zeros(3)))
    load_state(tmp_path / "s", x=other)
    assert other.tree["a"] is other.tree["b"]
    assert other.tree["a"].tolist() == [1, 1, 1]


def test_what_was_not_one_tensor_is_none_afterwards(tmp_path: Path) -> None:
    save_state(tmp_path / "s", x=Own({"a": torch.ones(3), "b": torch.zeros(3)}))
    live = torch.full((3,), 7.0)
    other = Own({"a": live, "b": live})
    load_state(tmp_path / "s", x=other)
    assert (other.tree["a"].tolist(), other.tree["b"].tolist()) == ([1, 1, 1], [0, 0, 0])


def test_weights_that_are_tied_now_get_the_last_of_those_that_were_not(tmp_path: Path) -> None:
    def make(*, tied: bool) -> nn.Module:
        model = nn.ModuleDict({"a": nn.Linear(700, 5000), "b": nn.Linear(700, 5000)})
        if tied:
            model["b"].weight = model["a"].weight
        return model

    untied = make(tied=False)
    save_state(tmp_path / "s", model=untied)
    for _ in range(5):
        tied = make(tied=True)
        load_state(tmp_path / "s", model=tied)
        assert torch.equal(tied["a"].weight, untied["b"].weight)


def test_of_tied_weights_each_has_to_be_there(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    save_state(tmp_path / "s", model=model)
    only = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ParameterDict({"bias": torch.ones(3)})})
    with pytest.raises(CheckpointError, match=r"has model\.b\.weight, which the state .* not"):
        load_state(tmp_path / "s", model=only)


class Remembering(SGD):
    """Makes something of its groups when it is loaded, as Optimizer.load_state_dict lets it."""

    decay: float = -1.0

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.decay = sum(group["weight_decay"] for group in self.param_groups)


@pytest.mark.parametrize("name", ["optimizer", "opt"])
def test_an_optimizer_is_told_that_it_was_loaded(tmp_path: Path, name: str) -> None:
    model = _network()
    saved: Any = {name: Remembering(model.parameters(), lr=1, weight_decay=0.25)}
    save_state(tmp_path / "s", model=model, **saved)
    loaded = Remembering(model.parameters(), lr=1)
    both: Any = {name: loaded}
    load_state(tmp_path / "s", model=model, **both)
    assert loaded.decay == 0.25


class Wrapping(SGD):
    """Has what another one has, as LightningOptimizer does."""

    def __init__(self, optimizer: SGD) -> None:
        self.wrapped = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __setstate__(self, state: Any) -> None:
        raise AssertionError


def test_a_wrapper_keeps_nothing_of_the_optimizer_in_it(tmp_path: Path) -> None:
    model = _network()
    save_state(tmp_path / "s", model=model, optimizer=SGD(model.parameters(), lr=0.5))
    inner = SGD(model.parameters(), lr=0.1)
    wrapper = Wrapping(inner)
    load_state(tmp_path / "s", model=model, optimizer=wrapper)
    assert inner.param_groups[0]["lr"] == 0.5
    assert vars(wrapper).keys() == {"wrapped"}


class Loading(AdamW):
    """Only loads in another way; what it saves is what torch would."""

    def state_dict(self) -> dict[str, Any]:
        return dict(super().state_dict())

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)


def test_an_optimizer_that_saves_what_it_has_is_taken(tmp_path: Path) -> None:
    model = _network()
    optimizer = Loading(model.parameters())
    _step(model, optimizer)
    save_state(tmp_path / "s", model=model, optimizer=[optimizer])
    save_state(tmp_path / "t", model=model, optimizer={"a": optimizer}.values())  # type: ignore[arg-type]
    for directory in ("s", "t"):
        loaded = Loading(model.parameters())
        load_state(tmp_path / directory, model=model, optimizer=loaded)
        assert all(state["step"] == 1 for state in loaded.state.values())


class Averages:
    """Begins with the model's own tensors, as some do."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = dict(model.state_dict())

    def state_dict(self) -> Any:
        return self.shadow

    def load_state_dict(self, state: Any) -> None:
        self.shadow = state


@pytest.mark.parametrize("names", [("model", "ema"), ("ema", "net")])
def test_averages_are_not_read_into_the_model(tmp_path: Path, names: tuple[str, str]) -> None:
    model = nn.Linear(3, 3)
    averages = Averages(model)
    averages.shadow = {key: value + 5 for key, value in model.state_dict().items()}
    pair: Any = {name: averages if name == "ema" else model for name in names}
    save_state(tmp_path / "s", **pair)
    live = nn.Linear(3, 3)
    loaded = Averages(live)
    pair = {name: loaded if name == "ema" else live for name in names}
    load_state(tmp_path / "s", **pair)
    assert torch.equal(live.weight, model.weight)
    assert torch.equal(loaded.shadow["weight"], model.weight + 5)


def test_a_dict_of_the_model_s_tensors_is_not_overwritten_by_another_one(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    save_state(tmp_path / "s", model=model, best={"w": model.weight.detach() + 1})
    live = nn.Linear(3, 3)
    with pytest.raises(CheckpointError, match=r"best\.w is the same memory as model\.weight"):
        load_state(tmp_path / "s", model=live, best={"w": live.weight.detach()})


def test_a_view_of_the_beginning_is_not_read_into_the_whole(tmp_path: Path) -> None:
    save_state(tmp_path / "s", x=Own({"a": torch.arange(4.0), "b": torch.tensor([8.0, 9.0])}))
    whole = torch.zeros(4)
    loaded = Own({"a": whole, "b": whole[:2]})
    load_state(tmp_path / "s", x=loaded)
    assert (loaded.tree["a"].tolist(), loaded.tree["b"].tolist()) == ([0, 1, 2, 3], [8, 9])


def test_of_weights_that_are_tied_now_all_must_have_their_shape(tmp_path: Path) -> None:
    saved = nn.ParameterDict({"a": torch.zeros(3), "b": torch.zeros(4)})
    save_state(tmp_path / "s", model=saved)
    one = nn.Parameter(torch.ones(4))
    tied = nn.ParameterDict({"a": one, "b": one})
    with pytest.raises(CheckpointError, match=r"model\.a is float32\[4\], and in .* float32\[3\]"):
        load_state(tmp_path / "s", model=tied)


class Lookahead(AdamW):
    """Keeps more than torch's optimizers, where only its own state_dict() tells of it."""

    slow = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "slow": self.slow}

    def load_state_dict(self, state_dict: Any) -> None:
        self.slow = state_dict["slow"]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "slow"})


def test_an_optimizer_with_a_state_of_its_own_is_not_taken_apart(tmp_path: Path) -> None:
    model = _network()
    optimizer = Lookahead(model.parameters())
    _step(model, optimizer)
    optimizer.slow = 3
    with pytest.raises(ConfigError, match=r"is a Lookahead, .* by a name of its own"):
        save_state(tmp_path / "s", model=model, optimizer=optimizer)
    save_state(tmp_path / "s", model=model, opt=optimizer)
    loaded = Lookahead(_network().parameters())
    load_state(tmp_path / "s", opt=loaded)
    assert loaded.slow == 3
    first = next(iter(loaded.state.values()))
    assert torch.equal(first["exp_avg"], next(iter(optimizer.state.values()))["exp_avg"])


@pytest.mark.parametrize("name", ["optimizer", "opt"])
def test_an_optimizer_of_which_each_rank_has_a_part_is_refused(tmp_path: Path, name: str) -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = _network()
        parts: Any = {name: ZeroRedundancyOptimizer(model.parameters(), AdamW)}
        with pytest.raises(ConfigError, match=r"ZeroRedundancyOptimizer.*fully_shard"):
            save_state(tmp_path / "s", model=model, **parts)
    finally:
        distributed.destroy_process_group()


def _without_types(directory: Path) -> None:
    """Make an index one of an older version."""
    path = directory / INDEX_NAME
    index = json.loads(path.read_bytes())
    index["types"], index["trees"] = None, {}
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("has_stepped", [True, False])
def test_pairs_that_older_versions_wrote_are_complex_numbers(
    tmp_path: Path, has_stepped: bool
) -> None:
    def make() -> tuple[nn.Module, AdamW]:
        model = nn.Module()
        model.register_parameter("w", nn.Parameter(torch.ones(4, dtype=torch.complex128)))
        return model, AdamW(model.parameters(), foreach=False)

    def step(model: nn.Module, optimizer: AdamW) -> None:
        model.get_parameter("w").abs().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    model, optimizer = make()
    step(model, optimizer)
    save_state(tmp_path / "s", model=model, optimizer=optimizer)
    _without_types(tmp_path / "s")
    other, loaded = make()
    if has_stepped:
        step(other, loaded)
    load_state(tmp_path / "s", model=other, optimizer=loaded)
    (expected,), (found,) = optimizer.state.values(), loaded.state.values()
    assert torch.equal(found["exp_avg"], expected["exp_avg"])
    step(other, loaded)


def test_bits_that_older_versions_wrote_stay_what_they_were(tmp_path: Path) -> None:
    model = _network()
    optimizer = SGD(model.parameters())
    for value, parameter in enumerate(model.parameters(), 1):
        optimizer.state[parameter]["scale"] = torch.tensor([value]).to(torch.float8_e4m3fnuz)
    save_state(tmp_path / "s", model=model, optimizer=optimizer)
    _without_types(tmp_path / "s")
    for state in optimizer.state.values():
        state["scale"] = torch.zeros(1).to(torch.float8_e4m3fnuz)
    load_state(tmp_path / "s", model=model, optimizer=optimizer)
    scales = [state["scale"] for state in optimizer.state.values()]
    assert {scale.dtype for scale in scales} == {torch.float8_e4m3fnuz}
    assert [scale.float().item() for scale in scales] == [1, 2, 3, 4]


class Kind(str, enum.Enum):
    SLOW = "slow"


def test_keys_that_are_an_enum_of_strings_come_back(tmp_path: Path) -> None:
    save_state(tmp_path / "s", x=Own({Kind.SLOW: torch.ones(2)}))
    loaded = Own({Kind.SLOW: torch.zeros(2)})
    load_state(tmp_path / "s", x=loaded)
    assert loaded.tree[Kind.SLOW].tolist() == [1, 1]


class Metric(nn.Module):
    """As those of torchmetrics: a list of tensors is state, and no buffer."""

    def __init__(self, *batches: float) -> None:
        super().__init__()
        self.batches = [torch.tensor([batch]) for batch in batches]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}batches"] = [batch.detach() for batch in self.batches]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
        if f"{prefix}batches" in state_dict:
            self.batches = state_dict[f"{prefix}batches"]


@pytest.mark.parametrize("live", [(), (5.0,), (5.0, 6.0, 7.0)])
def test_a_metric_has_as_many_batches_as_it_had(tmp_path: Path, live: tuple[float, ...]) -> None:
    save_state(tmp_path / "s", model=nn.Sequential(nn.Linear(2, 2), Metric(1, 2)))
    metric = Metric(*live)
    load_state(tmp_path / "s", model=nn.Sequential(nn.Linear(2, 2), metric))
    assert [batch.item() for batch in metric.batches] == [1, 2]


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    save_state(tmp_path / "s", x={"a": 1}, scaler=None)
    live = {"a": 0}
    load_state(tmp_path / "s", x=live, scaler=None)
    assert live == {"a": 1}


def test_a_part_of_a_model_is_loaded_by_its_name(tmp_path: Path) -> None:
    model = _network()
    save_state(tmp_path / "s", model=model)
    body: Any = {"model.0": nn.Linear(4, 5)}
    load_state(tmp_path / "s", **body)
    assert torch.equal(body["model.0"].weight, model[0].weight)


# What torch.distributed.checkpoint and its plug-in write.


def _written(directory: Path, content: dict[str, Any], *, by: str) -> None:
    writer = StateWriter(directory) if by == "plug-in" else dcp.FileSystemWriter(directory)
    dcp.save(content, storage_writer=writer)


@pytest.mark.parametrize("by", ["torch", "plug-in"])
@pytest.mark.parametrize("form", ["names", "numbers"])
@pytest.mark.parametrize("name", ["optimizer", "optim"])
@pytest.mark.parametrize("has_stepped", [True, False])
def test_optimizers_of_others_are_loaded_by_names_and_by_numbers(
    tmp_path: Path, by: str, form: str, name: str, has_stepped: bool
) -> None:
    model = _network()
    optimizer = AdamW(model.parameters(), lr=0.5)
    _step(model, optimizer)
    state = optimizer.state_dict() if form == "numbers" else get_state_dict(model, optimizer)[1]
    _written(tmp_path / "s", {"model": model.state_dict(), name: state}, by=by)
    other = _network()
    loaded = AdamW(other.parameters())
    if has_stepped:
        _step(other, loaded)
    given: Any = {name: loaded}
    load_state(tmp_path / "s", model=other, **given)
    assert loaded.param_groups[0]["lr"] == 0.5
    for ours, theirs in zip(loaded.state.values(), optimizer.state.values(), strict=True):
        assert torch.equal(ours["exp_avg"], theirs["exp_avg"])
        assert ours["step"] == 1


@pytest.mark.parametrize("by", ["torch", "plug-in"])
@pytest.mark.parametrize("form", ["names", "numbers"])
def test_an_optimizer_without_state_is_loaded(tmp_path: Path, by: str, form: str) -> None:
    model = _network()
    optimizer = SGD(model.parameters(), lr=0.5)
    state = optimizer.state_dict() if form == "numbers" else get_state_dict(model, optimizer)[1]
    _written(tmp_path / "s", {"model": model.state_dict(), "optim": state}, by=by)
    loaded = SGD(model.parameters(), lr=0.1)
    load_state(tmp_path / "s", model=model, optim=loaded)
    assert loaded.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("by", ["torch", "plug-in"])
def test_lists_in_the_state_of_an_optimizer_are_loaded(tmp_path: Path, by: str) -> None:
    def make(value: float) -> tuple[nn.Module, SGD]:
        model = _network()
        optimizer = SGD(model.parameters())
        for parameter in model.parameters():
            optimizer.state[parameter]["history"] = [torch.full((3,), value), value]
        return model, optimizer

    model, optimizer = make(1.0)
    content = {"model": model.state_dict(), "opt": optimizer.state_dict()}
    _written(tmp_path / "s", content, by=by)
    other, loaded = make(2.0)
    load_state(tmp_path / "s", model=other, opt=loaded)
    for state in loaded.state.values():
        assert state["history"][0].tolist() == [1, 1, 1]
        assert state["history"][1] == 1.0


@pytest.mark.parametrize(
    ("saved", "message"),
    [(3, "x is the int 3 in the checkpoint"), (torch.ones(2), "x is a tensor in the checkpoint")],
)
def test_a_dict_is_not_given_what_is_none(tmp_path: Path, saved: Any, message: str) -> None:
    model = _network()
    _written(tmp_path / "s", {"model": model.state_dict(), "x": saved}, by="plug-in")
    with torch.no_grad():
        model[0].weight.zero_()
    with pytest.raises(CheckpointError, match=message):
        load_state(tmp_path / "s", model=model, x={"step": 0})
    assert not model[0].weight.any()


# What goes wrong on one rank.


class Refusing(Own):
    def load_state_dict(self, tree: Any) -> None:
        raise ValueError("size mismatch for w")


def test_what_cannot_be_taken_in_is_told_to_all_ranks(tmp_path: Path) -> None:
    save_state(tmp_path / "s", x=Own({"w": 1}))

    def load(comm: ThreadComm) -> str:
        live = Refusing({}) if comm.rank == 1 else Own({})
        with pytest.raises(CheckpointError) as caught:
            load_into(tmp_path / "s", model=None, optimizer=None, others={"x": live}, ranks=comm)
        return str(caught.value)

    told = run_on_threads(2, load)
    assert told[0] == told[1]
    assert told[0].startswith("x could not take in what was read: size mismatch for w. Part of")


def test_a_copy_that_fails_on_one_rank_is_told_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state(tmp_path / "s", x={"w": torch.ones(3)})
    calls = count()

    def wait() -> None:
        if next(calls) == 0:
            raise CheckpointError("3 of 9 blocks were copied within 600 s.")

    monkeypatch.setattr(loading, "wait_for_all", wait)

    def load(comm: ThreadComm) -> str:
        with pytest.raises(CheckpointError) as caught:
            load_into(tmp_path / "s", model=None, optimizer=None, others={"x": {}}, ranks=comm)
        return str(caught.value)

    told = run_on_threads(2, load)
    assert all("3 of 9 blocks were copied" in text for text in told), told
    assert any("of 2 failed" in text for text in told), told


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": {}}, r"model is a dict, and a torch\.nn\.Module is needed"),
        ({"optimizer": {}}, r"optimizer has a dict, and a torch\.optim\.Optimizer or a list"),
        ({"optimizer": ["a"]}, r"optimizer has a str, and"),
        ({"epoch": 3}, r"epoch is a int, .* progress=\{'epoch': \.\.\.\}"),
        ({"rates": [Own({})]}, r"rates is a list, .* rates_0=\.\.\., rates_1=\.\.\."),
    ],
)
def test_what_is_given_by_a_wrong_name_is_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        save_state(tmp_path / "s", **given)


def test_what_is_no_directory_of_a_state_is_refused(tmp_path: Path) -> None:
    torch.save({}, file := tmp_path / "old.pt")
    wrong: Any
    for wrong, message in (
        (None, r"load_state\(None\): .* At a fresh start there is no checkpoint"),
        (3, r"load_state\(3\): a Checkpoint or a directory is needed"),
        (file, r"old\.pt'\): that is a file\. .* torch\.load\(\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_state(wrong, x={})
    with pytest.raises(CheckpointError, match=r"It has old\.pt"):
        load_state(tmp_path, x={})


def test_a_load_without_anything_or_of_another_name_is_refused(tmp_path: Path) -> None:
    save_state(tmp_path / "s", x={"a": 1})
    with pytest.raises(ConfigError, match="given nothing to load into"):
        load_state(tmp_path / "s")
    with pytest.raises(CheckpointError, match=r"has no y, .* It holds x\."):
        load_state(tmp_path / "s", y={"a": 0})


def test_the_reader_of_the_plug_in_tells_whose_directory_it_does_not_read(tmp_path: Path) -> None:
    _written(tmp_path / "s", {"w": torch.ones(3)}, by="torch")
    with pytest.raises(CheckpointException) as caught:
        dcp.load({"w": torch.zeros(3)}, storage_reader=StateReader(tmp_path / "s"))
    assert "written by torch.distributed.checkpoint's own writer" in str(caught.value)
