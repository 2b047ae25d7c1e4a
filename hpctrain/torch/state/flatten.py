"""`flatten_state`: models, optimizers and all else as tensors and values with names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch.state.optimizer_state import optimizer_part, optimizers_of
from hpctrain.torch.state.part import Part
from hpctrain.torch.state.trees import SavedTrees, filled, form_of, is_tensor, joined, leaves
from hpctrain.torch.state.values import decode, encode

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class FlatState:
    """All tensors and values of a state by name, such as ``model.layer.weight``."""

    tensors: Mapping[str, torch.Tensor]
    """The live ones, or views of them: what is read into them has been loaded."""
    buffers: frozenset[str]
    """Names of those tensors that ranks may have with other values: the lowest one's count."""
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

        def leaf(name: str, _: Any, live: Any) -> Any:
            if is_tensor(live):
                return live
            if name not in values:
                raise CheckpointError(
                    f"the checkpoint has no {name}. Load it into what it was saved from."
                )
            return decode(values[name])

        for part in self.parts:
            form = form_of(part.tree, keep=part.keep_top)
            part.restore(filled(part.name, form, leaf, live=part.tree))

    def trees(self) -> dict[str, Any]:
        """Return the forms of trees that may have another one when they are loaded, as JSON.

        Not collective. By name; values, and tensors that are no part of a tree, have none.
        """
        found = {}
        for part in self.parts:
            for name, tree in part.grown.items():
                form = form_of(tree, keep=part.keep_top)
                # Keys need not be values. Then it is loaded into what has the same form.
                with suppress(ConfigError):
                    if form is not None:
                        found[name] = encode(form, name=name)
        return found


def flatten_state(
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    others: Mapping[str, Any] | None = None,
    saved: SavedTrees | None = None,
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
        By name: whatever has ``state_dict()`` and ``load_state_dict()``, and dicts.
    saved
        Of the checkpoint that is loaded: what may have another form there gets that. Nothing is
        changed before `FlatState.restore`.

    Raises
    ------
    ConfigError
        If something of it cannot be saved.
    CheckpointError
        If an optimizer has other parameters than in the checkpoint.
    """
    parts = []
    if model is not None:
        parts.append(_model_part("model", model, saved))
    if optimizer is not None:
        names = {} if model is None else parameter_names(model)
        parts.append(optimizer_part("optimizer", optimizers_of(optimizer), names, saved))
    for name, other in (others or {}).items():
        parts.append(_other_part(name, other, saved))
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {}
    for part in parts:
        for name, leaf, is_one in leaves(part.name, part.tree, keep=part.keep_top):
            if name in tensors or name in values:
                raise ConfigError(
                    f"two things of the state are called {name}. Rename one: names are keys, "
                    f"joined with dots."
                )
            if is_one:
                tensors[name] = leaf
            else:
                values[name] = encode(leaf, name=name)
    buffers = frozenset(f"{part.name}.{key}" for part in parts for key in part.buffers)
    return FlatState(tensors=tensors, buffers=buffers, values=values, parts=tuple(parts))


def parameter_names(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Return the name of each parameter in the plain model, without wrappers. Not collective."""
    plain = _plain_names(model)
    return {parameter: plain(name) for name, parameter in model.named_parameters()}


def _model_part(name: str, model: torch.nn.Module, saved: SavedTrees | None) -> Part:
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
    extra = [key for key in tree if _is_extra(key)]
    if saved is not None:
        for key in extra:
            tree[key] = _form_saved(f"{name}.{key}", tree[key], saved)

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

    grown = {f"{name}.{key}": tree[key] for key in extra}
    # As DistributedDataParallel has it: it gives rank 0's to the others before each forward pass.
    buffers = {plain(key) for key, _ in model.named_buffers(remove_duplicate=False)}
    return Part(name=name, tree=tree, restore=restore, buffers=buffers, grown=grown)


def _name_of_type(kind: type) -> str:
    return kind.__name__


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


def _other_part(name: str, other: Any, saved: SavedTrees | None) -> Part:
    import torch

    if isinstance(other, torch.nn.Module):
        return _model_part(name, other, saved)
    if isinstance(other, torch.optim.Optimizer) and _has_usual_state(other):
        return optimizer_part(name, [other], None, saved)
    if hasattr(other, "state_dict") and hasattr(other, "load_state_dict"):
        tree, restore = other.state_dict(), other.load_state_dict
        tree = _form_saved(name, tree, saved)
    elif isinstance(other, dict):
        tree, restore = _form_saved(name, other, saved), other.update
        if tree is not other:
            # Who gave a tensor in a dict may hold it elsewhere too: it is read into, or missed.
            tree = joined(tree, other)
    else:
        raise ConfigError(
            f"{name} is a {type(other).__qualname__}, which has no state_dict() and "
            f"load_state_dict(), and is no dict. Give it as a dict, into which it can be loaded."
        )
    return Part(name=name, tree=tree, restore=restore, grown={name: tree})


def _form_saved(name: str, live: Any, saved: SavedTrees | None) -> Any:
    """Return a tree in the form that it has in a checkpoint, if that is known."""
    if saved is None or not saved.knows(name):
        return live
    return saved.tree(name, saved.form(name), live)


def _has_usual_state(optimizer: torch.optim.Optimizer) -> bool:
    from torch.optim import Optimizer

    hooks = ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")
    return (
        type(optimizer).state_dict is Optimizer.state_dict
        and type(optimizer).load_state_dict is Optimizer.load_state_dict
        and not any(getattr(optimizer, f"_optimizer_{hook}_hooks", None) for hook in hooks)
    )
