"""The state of models as a tree, by the names that the plain model has."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain
from typing import TYPE_CHECKING, Any

from hpctrain.torch.state.state_dict.pytree import is_tensor
from hpctrain.torch.state.state_dict.saved_trees import SavedTrees, with_saved_treedef
from hpctrain.torch.state.state_dict.stateful import Stateful, check_not_flattened

if TYPE_CHECKING:
    import torch


def parameter_names(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Return the name of each parameter in the plain model, without wrappers. Not collective."""
    plain = _plain_names(model)
    return {parameter: plain(name) for name, parameter in model.named_parameters()}


def model_stateful(name: str, model: torch.nn.Module, saved: SavedTrees | None) -> Stateful:
    """Return the state of a model. Not collective.

    Parameters
    ----------
    name
        Under which it is saved.
    model
        Plain, compiled, or wrapped.
    saved
        Of the checkpoint that is loaded: what is neither a parameter nor a buffer gets
        the treedef that it has there.

    Raises
    ------
    ConfigError
        If its parameters have lost their shapes.
    """
    check_not_flattened(name, model)
    plain = _plain_names(model)
    state = model.state_dict()
    keys = {key: plain(key) for key in state}
    tree = {plain(key): value for key, value in state.items()}
    extra = {key for key, value in tree.items() if _is_extra(key) or not is_tensor(value)}
    if saved is not None:
        for key, value in tree.items():
            if key in extra:
                tree[key] = with_saved_treedef(f"{name}.{key}", value, saved)
            else:
                # Averages may begin as the model's own tensors, and are not to be read into them.
                saved.keep(f"{name}.{key}", value)

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

    with_treedef = {f"{name}.{key}": tree[key] for key in extra}
    # Of buffers DistributedDataParallel gives rank 0's to the others before each forward pass.
    parameters = {
        f"{name}.{plain(key)}" for key, _ in model.named_parameters(remove_duplicate=False)
    }
    return Stateful(
        name=name,
        tree=tree,
        restore=restore,
        is_replicated=parameters.__contains__,
        with_treedef=with_treedef,
    )


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
