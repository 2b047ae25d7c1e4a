"""`flatten_state`: models, optimizers and all else as tensors and values with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch.state.state_dict.json_values import decode, encode
from hpctrain.torch.state.state_dict.model import model_stateful, parameter_names
from hpctrain.torch.state.state_dict.optimizer import optimizer_stateful, optimizers_of
from hpctrain.torch.state.state_dict.pytree import (
    is_sharded,
    is_tensor,
    keys_survive_json,
    leaves,
    merge,
    treedef_of,
    unflatten,
)
from hpctrain.torch.state.state_dict.saved_optimizer import maker, saved_by_numbers
from hpctrain.torch.state.state_dict.saved_trees import SavedTrees, with_saved_treedef
from hpctrain.torch.state.state_dict.stateful import (
    Stateful,
    check_is_dict,
    check_is_module,
    check_is_whole,
    check_usual_state,
    has_usual_state,
    refusal,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class FlatState:
    """All tensors and values of a state by name, such as ``model.layer.weight``."""

    tensors: Mapping[str, torch.Tensor]
    """The live ones, or views of them: what is read into them has been loaded."""
    replicated: frozenset[str]
    """Names of those tensors of which ranks have the same values, or shards. Of others, which may
    differ, as states of random generators do, the lowest rank's count."""
    values: Mapping[str, Any]
    """JSON; of what has no tensor in it, the whole tree has one name."""
    objects: tuple[Stateful, ...]

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

        for stateful in self.objects:
            treedef = treedef_of(stateful.tree, keep=stateful.keep_top)
            tree = unflatten(stateful.name, treedef, leaf, live=stateful.tree)
            try:
                stateful.restore(tree)
            # Whatever a load_state_dict() of the user's raises.
            except Exception as error:
                what = str(error) or type(error).__name__
                raise CheckpointError(
                    f"{stateful.name} could not take in what was read: {what.rstrip('.')}."
                ) from error

    def trees(self) -> dict[str, Any]:
        """Return the treedefs of trees that may differ when they are loaded, as JSON.

        Not collective. By name; values, and tensors that stand alone, have none.
        """
        found = {}
        for stateful in self.objects:
            for name, tree in stateful.with_treedef.items():
                treedef = treedef_of(tree, keep=stateful.keep_top)
                # Keys need not be values. Such a tree is loaded into one of the same treedef only.
                with suppress(ConfigError):
                    if treedef is not None and keys_survive_json(treedef):
                        found[name] = encode(treedef, name=name)
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
        By name: whatever has ``state_dict()`` and ``load_state_dict()``, and dicts. None is left
        out.
    saved
        Of the checkpoint that is loaded: trees get the treedef that they have there. Nothing is
        changed before `FlatState.restore`.

    Raises
    ------
    ConfigError
        If something of it cannot be saved.
    CheckpointError
        If an optimizer has other parameters than in the checkpoint.
    """
    objects = _objects(model, optimizer, others or {}, saved)
    tensors: dict[str, torch.Tensor] = {}
    replicated: set[str] = set()
    values: dict[str, Any] = {}
    for stateful in objects:
        for name, leaf, is_one in leaves(stateful.name, stateful.tree, keep=stateful.keep_top):
            if name in tensors or name in values:
                raise ConfigError(
                    f"two things of the state are called {name}. Rename one: names are keys, "
                    f"joined with dots."
                )
            if not is_one:
                values[name] = encode(leaf, name=name)
                continue
            tensors[name] = leaf
            if is_sharded(leaf) or stateful.is_replicated(name):
                replicated.add(name)
    return FlatState(
        tensors=tensors,
        replicated=frozenset(replicated),
        values=values,
        objects=tuple(objects),
    )


def _objects(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
    others: Mapping[str, Any],
    saved: SavedTrees | None,
) -> list[Stateful]:
    # As what may or may not be there is most often written: scaler = GradScaler() if ... else None.
    given = {name: other for name, other in others.items() if other is not None}
    objects = []
    if model is not None:
        check_is_module(model)
        objects.append(model_stateful("model", model, saved))
    if optimizer is not None:
        optimizers = optimizers_of(optimizer)
        if saved is None:
            for one in optimizers:
                check_usual_state(one)
        names: Mapping[torch.Tensor, str] | None = {} if model is None else parameter_names(model)
        if saved is not None and saved_by_numbers("optimizer", saved):
            names = None
        objects.append(optimizer_stateful("optimizer", optimizers, names, saved))
    # A load has to know the memory of models first.
    for name, other in sorted(given.items(), key=_is_no_module) if saved else given.items():
        objects.append(_other_stateful(name, other, saved, [model, *given.values()]))
    return objects


def _is_no_module(item: tuple[str, Any]) -> bool:
    import torch

    return not isinstance(item[1], torch.nn.Module)


def _other_stateful(
    name: str, other: Any, saved: SavedTrees | None, beside: Sequence[Any]
) -> Stateful:
    import torch

    if isinstance(other, torch.nn.Module):
        return model_stateful(name, other, saved)
    if isinstance(other, torch.optim.Optimizer) and has_usual_state(other):
        names = None
        if saved is not None and saved_by_numbers(name, saved) is False:
            models = [one for one in beside if isinstance(one, torch.nn.Module)]
            names = {p: its_name for m in models for p, its_name in parameter_names(m).items()}
        return optimizer_stateful(name, [other], names, saved)
    check_is_whole(name, other)
    is_optimizer = isinstance(other, torch.optim.Optimizer)
    if hasattr(other, "state_dict") and hasattr(other, "load_state_dict"):
        tree, restore = other.state_dict(), other.load_state_dict
        tree = with_saved_treedef(name, tree, saved, maker(name, other) if is_optimizer else None)
    elif isinstance(other, dict):
        tree, restore = with_saved_treedef(name, other, saved), other.update
        if saved is not None and tree is not other:
            check_is_dict(name, tree, saved)
            # Who gave a tensor in a dict may hold it elsewhere too: it is read into, or missed.
            tree = merge(tree, other)
    else:
        raise refusal(name, other)
    return Stateful(
        name=name,
        tree=tree,
        restore=restore,
        is_replicated=lambda _: is_optimizer,
        with_treedef={name: tree},
    )
