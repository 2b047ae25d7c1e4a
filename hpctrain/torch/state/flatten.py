"""`flatten_state`: models, optimizers and all else as tensors and values with names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch.state.values import decode, encode

if TYPE_CHECKING:
    import torch

# Larger arrays of NumPy are written as tensors.
_SMALL_ARRAY_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the things that a state is made of, under a name of its own."""

    name: str
    tree: Any
    """Of dicts, lists, tensors and values. Its tensors are the live ones."""
    restore: Callable[[Any], None]
    """Take in a tree of the same form, in which the tensors are the live ones already."""
    keep_top: bool = False
    """Whether each key of the tree has a name, also one below which there is no tensor."""


@dataclass(frozen=True, kw_only=True)
class FlatState:
    """All tensors and values of a state by name, such as ``model.layer.weight``."""

    tensors: Mapping[str, torch.Tensor]
    """The live ones, or views of them: what is read into them has been loaded."""
    values: Mapping[str, Any]
    """JSON; of what has no tensor in it, the whole tree has one name."""
    parts: tuple[Part, ...]

    def restore(self, values: Mapping[str, Any]) -> None:
        """Give what is no tensor back to where it came from, once the tensors are read.

        Not collective.

        Parameters
        ----------
        values
            As in `values`, of a checkpoint.

        Raises
        ------
        CheckpointError
            If one is missing.
        """
        for part in self.parts:
            part.restore(_rebuilt(part.name, part.tree, values))


def flatten_state(
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    others: Mapping[str, Any] | None = None,
) -> FlatState:
    """Return the tensors and values of a state, without a copy of them.

    Not collective.

    Parameters
    ----------
    model
        Plain, compiled, or wrapped in DDP or `torch.distributed.fsdp.fully_shard`; names are those
        of the plain model.
    optimizer
        Of the model's parameters, one or several. Its state has the names of the parameters.
    others
        By name: whatever has ``state_dict()`` and ``load_state_dict()``, dicts, and values.

    Raises
    ------
    ConfigError
        If something of it cannot be saved.
    """
    parts = []
    if model is not None:
        parts.append(_model_part("model", model))
    if optimizer is not None:
        names = {} if model is None else parameter_names(model)
        parts.append(_optimizer_part("optimizer", optimizers_of(optimizer), names))
        _check_state_keys("optimizer", optimizers_of(optimizer), names)
    for name, other in (others or {}).items():
        parts.append(_other_part(name, other))
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {}
    for part in parts:
        for name, leaf, is_tensor in _leaves(part.name, part.tree, keep=part.keep_top):
            if name in tensors or name in values:
                raise ConfigError(
                    f"two things of the state are called {name}. Rename one: names are keys, "
                    f"joined with dots."
                )
            if is_tensor:
                tensors[name] = leaf
            else:
                values[name] = encode(leaf, name=name)
    return FlatState(tensors=tensors, values=values, parts=tuple(parts))


def optimizers_of(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
) -> list[torch.optim.Optimizer]:
    """Return one, several or no optimizers as a list. Not collective."""
    import torch

    if isinstance(optimizer, torch.optim.Optimizer):
        return [optimizer]
    return list(optimizer or ())


def parameter_names(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Return the name of each parameter in the plain model, without wrappers. Not collective."""
    plain = _plain_names(model)
    return {parameter: plain(name) for name, parameter in model.named_parameters()}


def _model_part(name: str, model: torch.nn.Module) -> Part:
    if any(
        "FullyShardedDataParallel" in map(_name_of_type, type(m).__mro__) for m in model.modules()
    ):
        raise ConfigError(
            f"{name} is wrapped in FullyShardedDataParallel, whose parameters have lost their "
            f"shapes. Shard it with torch.distributed.fsdp.fully_shard (FSDP2), or save it by "
            f"torch.distributed.checkpoint with hpctrain.torch.StateWriter."
        )
    plain = _plain_names(model)
    state = model.state_dict()
    keys = {key: plain(key) for key in state}
    tree = {plain(key): value for key, value in state.items()}

    def restore(rebuilt: Any) -> None:
        # Most tensors are read in place. What a module makes anew whenever it is asked for its
        # state it is to be given.
        memory = set(map(_memory, chain(model.parameters(), model.buffers())))
        given = {
            key: rebuilt[ours]
            for key, ours in keys.items()
            if _is_extra(ours) or _is_elsewhere(rebuilt[ours], memory)
        }
        if given:
            model.load_state_dict(given, strict=False)

    return Part(name=name, tree=tree, restore=restore)


def _is_extra(key: str) -> bool:
    """Return whether torch calls what `torch.nn.Module.get_extra_state` returns so."""
    return key.rpartition(".")[2] == "_extra_state"


def _is_elsewhere(value: Any, memory: Collection[int]) -> bool:
    import torch

    if not isinstance(value, torch.Tensor):
        return True
    # Empty tensors have no memory.
    return value.numel() > 0 and _memory(value) not in memory


def _memory(tensor: torch.Tensor) -> int:
    import torch

    local = getattr(tensor, "_local_tensor", tensor)
    return local.untyped_storage().data_ptr() if local.layout is torch.strided else 0


def _plain_names(model: torch.nn.Module) -> Callable[[str], str]:
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    wrapped = [
        f"{path}.module." if path else "module."
        for path, module in model.named_modules()
        if isinstance(module, DistributedDataParallel | DataParallel)
    ]

    def plain(name: str) -> str:
        # What is further inside has the longer name.
        for prefix in reversed(wrapped):
            if name.startswith(prefix):
                name = prefix.removesuffix("module.") + name[len(prefix) :]
        # Of torch.compile and of activation checkpointing.
        return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")

    return plain


def _optimizer_part(
    name: str,
    optimizers: Sequence[torch.optim.Optimizer],
    names: Mapping[torch.Tensor, str],
) -> Part:
    state: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    grouped = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            called = [_name_of(parameter, names, name) for parameter in group["params"]]
            for parameter, its_name in zip(group["params"], called, strict=True):
                if its_name in grouped:
                    raise ConfigError(
                        f"{its_name} is in two groups of {name}, which would have one state "
                        f"between them. Give each optimizer that shares parameters by a name of "
                        f"its own: save_state(directory, first=..., second=...)."
                    )
                grouped.add(its_name)
                if parameter in optimizer.state:
                    state[its_name] = optimizer.state[parameter]
            groups.append({**group, "params": called})

    def restore(rebuilt: Any) -> None:
        live = [group for optimizer in optimizers for group in optimizer.param_groups]
        saved = {tuple(group["params"]): group for group in rebuilt["param_groups"]}
        for group, here in zip(live, groups, strict=True):
            found = saved.get(tuple(here["params"]))
            if found is None:
                raise CheckpointError(
                    f"{name} has a group of {len(here['params'])} parameters, the first of which "
                    f"is {here['params'][0]}, and the checkpoint has none of the same. Group the "
                    f"parameters as they were when it was saved."
                )
            group.update({key: found[key] for key in found if key != "params"})
        for optimizer in optimizers:
            for parameter, own in optimizer.state.items():
                own.update(rebuilt["state"].get(_name_of(parameter, names, name), {}))

    return Part(
        name=name, tree={"state": state, "param_groups": groups}, restore=restore, keep_top=True
    )


def _check_state_keys(
    name: str,
    optimizers: Sequence[torch.optim.Optimizer],
    names: Mapping[torch.Tensor, str],
) -> None:
    for key in (key for optimizer in optimizers for key in optimizer.state if key not in names):
        # Annotated as tensors, and some optimizers keep what is common to all by a string.
        shape = getattr(key, "shape", None)
        called = f"the key {key!r}" if shape is None else f"a tensor of shape {tuple(shape)}"
        raise ConfigError(
            f"{name} has state of {called}, which is no parameter of the model: it has no name to "
            f"be saved by. Give the optimizer by a name of its own, save_state(directory, "
            f"other_optimizer=...), or keep such state elsewhere."
        )


def _name_of_type(kind: type) -> str:
    return kind.__name__


def _name_of(parameter: torch.Tensor, names: Mapping[torch.Tensor, str], optimizer: str) -> str:
    if parameter not in names:
        raise ConfigError(
            f"{optimizer} has a parameter of shape {tuple(parameter.shape)} that is none of the "
            f"model's. Give model= whose parameters it optimizes, or give it by a name of its own: "
            f"save_state(directory, other_optimizer=...)."
        )
    return names[parameter]


def _other_part(name: str, other: Any) -> Part:
    import torch

    if isinstance(other, torch.nn.Module):
        return _model_part(name, other)
    if hasattr(other, "state_dict") and hasattr(other, "load_state_dict"):
        return Part(name=name, tree=other.state_dict(), restore=other.load_state_dict)
    if isinstance(other, dict):
        return Part(name=name, tree=other, restore=other.update)
    raise ConfigError(
        f"{name} is a {type(other).__qualname__}, which has no state_dict() and load_state_dict(), "
        f"and is no dict. Give it as a dict, into which it can be loaded."
    )


def _leaves(name: str, tree: Any, *, keep: bool = False) -> Iterator[tuple[str, Any, bool]]:
    if _is_tensor(tree):
        yield name, _as_tensor(tree, name), True
    elif keep or _holds_tensor(tree):
        for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(f"{name}.{key}", item)
    else:
        yield name, tree, False


def _is_tensor(leaf: Any) -> bool:
    import numpy as np
    import torch

    if isinstance(leaf, np.ndarray):
        large = leaf.nbytes > _SMALL_ARRAY_BYTES and leaf.flags.writeable
        return bool(large and leaf.dtype.kind in "biufc")
    return isinstance(leaf, torch.Tensor)


def _as_tensor(leaf: Any, name: str) -> torch.Tensor:
    import torch

    if isinstance(leaf, torch.Tensor):
        return leaf.detach()
    try:
        return torch.from_numpy(leaf)
    except (TypeError, ValueError) as error:
        # Torch has nothing wider.
        dtype = {"g": "float64", "G": "complex128"}.get(leaf.dtype.char, leaf.dtype.name)
        raise ConfigError(
            f"{name} is a NumPy array of type {leaf.dtype.str!r} and strides {leaf.strides}, which "
            f"cannot be a tensor: arrays of more than {_SMALL_ARRAY_BYTES} bytes are saved and "
            f"loaded as tensors. Give numpy.ascontiguousarray({name}, dtype={dtype!r}), and keep "
            f"that in its place."
        ) from error


def _holds_tensor(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(_is_tensor(item) or _holds_tensor(item) for item in tree.values())
    if isinstance(tree, list | tuple):
        return any(_is_tensor(item) or _holds_tensor(item) for item in tree)
    return False


def _rebuilt(name: str, tree: Any, values: Mapping[str, Any]) -> Any:
    if name in values:
        return decode(values[name])
    if _is_tensor(tree):
        return tree
    if isinstance(tree, dict):
        return {key: _rebuilt(f"{name}.{key}", item, values) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        items = [_rebuilt(f"{name}.{i}", item, values) for i, item in enumerate(tree)]
        if hasattr(tree, "_fields"):
            named: Any = type(tree)
            return named._make(items)
        return items if isinstance(tree, list) else tuple(items)
    raise CheckpointError(f"the checkpoint has no {name}. Load it into what it was saved from.")
