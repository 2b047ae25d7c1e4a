"""The state of optimizers as a tree, also one that a checkpoint has and they have not yet."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch.state.state_dict.saved_optimizer import (
    Owners,
    saved_content,
    saved_tree,
    saved_treedef,
)
from hpctrain.torch.state.state_dict.saved_trees import SavedTrees
from hpctrain.torch.state.state_dict.stateful import Stateful

if TYPE_CHECKING:
    import torch


def optimizers_of(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
) -> list[torch.optim.Optimizer]:
    """Return one, several or no optimizers as a list. Not collective.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    import torch

    if optimizer is None:
        return []
    is_one = isinstance(optimizer, torch.optim.Optimizer | Mapping | str)
    several: list[Any] = [optimizer]
    if not is_one and isinstance(optimizer, Iterable):
        several = list(optimizer)
    for one in several:
        if not isinstance(one, torch.optim.Optimizer):
            raise ConfigError(
                f"optimizer has a {type(one).__qualname__}, and a torch.optim.Optimizer or a list "
                f"of them is needed. Give the optimizer itself, or what you have by a name of its "
                f"own: optimizer_state=..."
            )
    return several


def optimizer_stateful(
    name: str,
    optimizers: Sequence[torch.optim.Optimizer],
    names: Mapping[torch.Tensor, str] | None,
    saved: SavedTrees | None,
) -> Stateful:
    """Return the state of one or several optimizers. Not collective.

    Parameters
    ----------
    name
        Under which it is saved.
    optimizers
        Optimizers with the ``state_dict()`` of torch.
    names
        Of the parameters; None numbers them over all groups, as torch does.
    saved
        Of the checkpoint that is loaded: the tree has its treedef, and only `Stateful.restore`
        gives it to an optimizer.

    Raises
    ------
    ConfigError
        If state or a parameter has no name.
    CheckpointError
        If the checkpoint has other groups, or state of other parameters.
    """
    called = _numbers(optimizers) if names is None else names
    owners, groups = _owners(name, optimizers, called, is_saved=saved is not None)
    if names is None:
        # What is common to all parameters some optimizers keep by a string.
        others = [(o, key) for o in optimizers for key in o.state if not hasattr(key, "shape")]
        owners.update({key: (optimizer, key) for optimizer, key in others})
    _check_state_keys(name, optimizers, {*called, *(key for _, key in owners.values())})
    state = {
        its_name: optimizer.state[key]
        for its_name, (optimizer, key) in owners.items()
        if key in optimizer.state
    }
    tree: Any = {"state": state, "param_groups": groups}
    keep_top = names is not None
    if saved is not None:
        treedef = saved_treedef(name, saved, tree)
        content = saved_content(name, saved, treedef)
        _check_content(name, content)
        _check_groups(name, groups, content)
        if names is None:
            common = [key for key in content["state"] if not isinstance(key, int)]
            owners.update({key: (optimizers[0], key) for key in common})
        _check_owners(name, owners, content)
        tree = saved_tree(name, saved, treedef, content, tree, owners)
        keep_top = keep_top or not saved.knows(name)

    return Stateful(
        name=name,
        tree=tree,
        restore=partial(_restore, optimizers, owners, groups),
        keep_top=keep_top,
        is_replicated=lambda _: True,
        with_treedef={name: tree},
    )


def _restore(
    optimizers: Sequence[torch.optim.Optimizer],
    owners: Owners,
    groups: Sequence[Mapping[str, Any]],
    rebuilt: Any,
) -> None:
    """Give optimizers the groups and the state of a tree that has been read."""
    state = rebuilt.get("state") or {}
    loaded = {tuple(group["params"]): group for group in rebuilt["param_groups"]}
    live = [group for optimizer in optimizers for group in optimizer.param_groups]
    for group, here in zip(live, groups, strict=True):
        found = loaded[tuple(here["params"])]
        group.update({key: found[key] for key in found if key != "params"})
    for its_name, (optimizer, key) in owners.items():
        optimizer.state.pop(key, None)
        if its_name in state:
            optimizer.state[key] = state[its_name]
    for optimizer in optimizers:
        _update(optimizer)


def _update(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer make what it makes of its state, as torch does after loading it."""
    own = type(optimizer).__setstate__
    # Torch's own fill in what older versions of torch had not. A wrapper would keep what belongs to
    # the optimizer in it.
    if own.__module__.startswith("torch.optim") or "param_groups" not in vars(optimizer):
        return
    own(optimizer, {"state": optimizer.state, "param_groups": optimizer.param_groups})


def shard_again(model: torch.nn.Module) -> None:
    """Give a model of FSDP2 the parameters that optimizers know. Not collective.

    After a forward pass without a backward one its root has whole ones.
    """
    # Who has not imported it has no such model, and need not wait for it.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


def _owners(
    name: str,
    optimizers: Sequence[torch.optim.Optimizer],
    names: Mapping[torch.Tensor, Any],
    *,
    is_saved: bool,
) -> tuple[Owners, list[dict[str, Any]]]:
    owners: Owners = {}
    groups = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            parameters = group["params"]
            called = [_name_of(parameter, names, name, is_saved) for parameter in parameters]
            for parameter, its_name in zip(parameters, called, strict=True):
                if its_name in owners:
                    raise ConfigError(
                        f"{its_name} is in two groups of {name}, which would have one state "
                        f"between them. Give each optimizer that shares parameters by a name of "
                        f"its own: save_state(directory, first=..., second=...)."
                    )
                owners[its_name] = (optimizer, parameter)
            groups.append({**group, "params": called})
    return owners, groups


def _numbers(optimizers: Sequence[torch.optim.Optimizer]) -> dict[torch.Tensor, int]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    parameters = [parameter for group in groups for parameter in group["params"]]
    return {parameter: number for number, parameter in enumerate(parameters)}


def _name_of(
    parameter: torch.Tensor, names: Mapping[torch.Tensor, Any], optimizer: str, is_saved: bool
) -> Any:
    if parameter not in names:
        other = "or give it by a name of its own: save_state(directory, other_optimizer=...)"
        raise ConfigError(
            f"{optimizer} has a parameter of shape {tuple(parameter.shape)} that is none of the "
            f"model's. Give model= whose parameters it optimizes, "
            f"{'by whose names its state was saved' if is_saved else other}."
        )
    return names[parameter]


def _check_state_keys(
    name: str, optimizers: Sequence[torch.optim.Optimizer], known: set[Any]
) -> None:
    for key in (key for optimizer in optimizers for key in optimizer.state if key not in known):
        # Annotated as tensors, and some optimizers keep what is common to all by a string.
        shape = getattr(key, "shape", None)
        called = f"the key {key!r}" if shape is None else f"a tensor of shape {tuple(shape)}"
        raise ConfigError(
            f"{name} has state of {called}, which is no parameter of the model: it has no name to "
            f"be saved by. Give the optimizer by a name of its own, save_state(directory, "
            f"other_optimizer=...), or keep such state elsewhere."
        )


def _check_content(name: str, content: Any) -> None:
    if not isinstance(content, dict) or not {"state", "param_groups"} <= content.keys():
        raise CheckpointError(
            f"{name} is an optimizer, and in the checkpoint it is something else. Give things the "
            f"names that they had when they were saved."
        )


def _check_groups(name: str, groups: Sequence[Mapping[str, Any]], content: Any) -> None:
    """Compare which parameters are grouped with the groups of a checkpoint."""
    here = [list(group["params"]) for group in groups]
    found = [group["params"] for group in content["param_groups"] or ()]
    # What has no groups is found to lack them when names are compared.
    if not found or None in found:
        return
    ours, its = f"{name} has", "the checkpoint has"
    for one, other, has, lacks in ((here, found, ours, its), (found, here, its, ours)):
        for group in one:
            if group not in other:
                raise CheckpointError(
                    f"{has} a group of {len(group)} parameters, the first of which is "
                    f"{next(iter(group), 'none')}, and {lacks} groups of "
                    f"{[len(names) for names in other]} parameters, none of which is the same. "
                    f"Group the parameters as they were when it was saved."
                )


def _check_owners(name: str, owners: Owners, content: Any) -> None:
    lost = [str(key) for key in content["state"] or () if key not in owners]
    if lost:
        raise CheckpointError(
            f"the checkpoint has state of {len(lost)} parameters, the first of which is {lost[0]}, "
            f"that {name} does not have. Give the optimizer the parameters that it had when it was "
            f"saved."
        )
