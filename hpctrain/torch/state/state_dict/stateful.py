"""`Stateful`: one of the things that a state is made of, and checks of what may be one.

Each refusal says what to give in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch.state.state_dict.json_values import decode
from hpctrain.torch.state.state_dict.pytree import is_tensor
from hpctrain.torch.state.state_dict.saved_trees import SavedTrees

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Stateful:
    """A model, an optimizer or another object of a state, under a name of its own.

    As in `torch.distributed.checkpoint.stateful`: what gives a tree to save and takes one to load.
    """

    name: str
    tree: Any
    """Of dicts, lists, tensors and values. Its tensors are the live ones; of a state that is loaded
    they are those that are read into, and values are None."""
    restore: Callable[[Any], None]
    """Load a tree of the same treedef, whose tensors have been read."""
    keep_top: bool = False
    """Whether each key of the tree has a name, also one below which there is no tensor."""
    is_replicated: Callable[[str], bool] = lambda _: False
    """Whether all ranks that hold the tensor of this name have the same values in it."""
    with_treedef: Mapping[str, Any] = field(default_factory=dict)
    """Trees whose treedef is saved too, as they may have another one by then; by name."""


def check_is_module(model: Any) -> None:
    """Raise a ConfigError, if ``model=`` is none. Not collective."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"model is a {type(model).__qualname__}, and a torch.nn.Module is needed. Give the "
            f"model itself, or what you have by a name of its own: weights=..."
        )


def check_not_flattened(name: str, model: torch.nn.Module) -> None:
    """Raise a ConfigError, if FSDP1 has taken the shapes of a model's parameters away.

    Not collective.
    """
    if any(_is_a("FullyShardedDataParallel", module) for module in model.modules()):
        raise ConfigError(
            f"{name} is wrapped in FullyShardedDataParallel, whose parameters have lost their "
            f"shapes. Shard it with torch.distributed.fsdp.fully_shard (FSDP2), or save it by "
            f"torch.distributed.checkpoint with hpctrain.torch.StateWriter."
        )


def has_usual_state(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer's state is that of its parameters. Not collective."""
    from torch.optim import Optimizer

    hooks = ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")
    return (
        type(optimizer).state_dict is Optimizer.state_dict
        and type(optimizer).load_state_dict is Optimizer.load_state_dict
        and not any(getattr(optimizer, f"_optimizer_{hook}_hooks", None) for hook in hooks)
    )


def check_usual_state(optimizer: torch.optim.Optimizer) -> None:
    """Raise a ConfigError, if ``optimizer=`` keeps state elsewhere, which would not be saved.

    Not collective.
    """
    check_is_whole("optimizer", optimizer)
    if not has_usual_state(optimizer) and not _saves_what_it_has(optimizer):
        raise ConfigError(
            f"optimizer is a {type(optimizer).__qualname__}, which has a state_dict() of its own, "
            f"so that what it keeps cannot be told from its parameters. Give it by a name of its "
            f"own, other_optimizer=..., or give the optimizer that it wraps."
        )


def _saves_what_it_has(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a state_dict() of its own gives what torch's would."""
    theirs = optimizer.state_dict()
    if theirs.keys() != {"state", "param_groups"}:
        return False
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    ours = {n: optimizer.state[p] for n, p in enumerate(parameters) if p in optimizer.state}
    return theirs["state"].keys() == ours.keys() and all(
        isinstance(theirs["state"][number], dict) and theirs["state"][number].keys() == its.keys()
        for number, its in ours.items()
    )


def check_is_whole(name: str, other: Any) -> None:
    """Raise a ConfigError, if each rank has an unknown part of something.

    Not collective.
    """
    if _is_a("ZeroRedundancyOptimizer", other):
        raise ConfigError(
            f"{name} is a ZeroRedundancyOptimizer, of whose state each rank has a part, which is "
            f"whole on one rank only. Shard model and optimizer with "
            f"torch.distributed.fsdp.fully_shard (FSDP2) instead."
        )


def check_is_dict(name: str, tree: Any, saved: SavedTrees) -> None:
    """Raise a CheckpointError, if what is to be loaded into a dict is none. Not collective."""
    value = decode(saved.index.values.get(name)) if tree is None else tree
    if not isinstance(value, dict):
        called = "a tensor" if is_tensor(value) else f"the {type(value).__name__} {value!r:.60}"
        raise CheckpointError(
            f"{name} is {called} in the checkpoint, and a dict was given to load it into. Leave it "
            f"out, and read it with torch.distributed.checkpoint and hpctrain.torch.StateReader."
        )


def refusal(name: str, other: Any) -> ConfigError:
    """Return the error that something is nothing that could be loaded into. Not collective."""
    next_step = f"Give a dict: progress={{{name!r}: ...}}."
    if isinstance(other, list | tuple) and any(hasattr(item, "state_dict") for item in other):
        next_step = f"Give each of its items by a name of its own: {name}_0=..., {name}_1=..."
    return ConfigError(
        f"{name} is a {type(other).__qualname__}, which has no state_dict() and load_state_dict(), "
        f"and is no dict: nothing could be loaded into it. {next_step}"
    )


def _is_a(name: str, thing: Any) -> bool:
    """Return whether something is of a class, without its import."""
    return any(kind.__name__ == name for kind in type(thing).__mro__)
