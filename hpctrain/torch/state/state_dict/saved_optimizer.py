"""The state of optimizers in a checkpoint, as a tree into which it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hpctrain.torch.state.state_dict.json_values import decode
from hpctrain.torch.state.state_dict.pytree import treedef_of
from hpctrain.torch.state.state_dict.saved_trees import SavedTrees

if TYPE_CHECKING:
    import torch

# Numbers that optimizers keep on the CPU, wherever the parameter is.
_COUNTERS = ("step", "mu_product")

# By the name that state has: the optimizer, and its key there, which most often is a parameter.
Owners = dict[Any, tuple["torch.optim.Optimizer", Any]]


def saved_by_numbers(name: str, saved: SavedTrees) -> bool | None:
    """Return whether an optimizer's parameters are numbers in a checkpoint, in place of names.

    Not collective. None, if the checkpoint does not show it.
    """
    values = saved.index.values
    whole = decode(values.get(name))
    groups = decode(values.get(f"{name}.param_groups"))
    if isinstance(whole, dict):
        groups = whole.get("param_groups")
    if groups is None:
        # Something of a group is a tensor.
        groups = [{"params": decode(values.get(f"{name}.param_groups.0.params"))}]
    try:
        first = next(key for group in groups for key in group["params"] or ())
    except (StopIteration, KeyError, TypeError):
        return None
    return isinstance(first, int)


def saved_treedef(name: str, saved: SavedTrees, live: Any) -> Any:
    """Return the treedef of a checkpoint, or what names imply, if no program wrote one.

    Not collective.
    """
    if saved.knows(name):
        return saved.treedef(name)
    index = saved.index
    groups = treedef_of(live["param_groups"])
    known = {str(key): key for group in live["param_groups"] for key in group["params"]}
    known |= {str(key): key for key in live["state"]}
    if f"{name}.state" in index.values and not index.plain_names:
        return {"state": None, "param_groups": groups}
    state: dict[Any, Any] = {}
    for full in (*index.shapes, *index.aliases, *index.values):
        if full.startswith(f"{name}.state."):
            rest = full.removeprefix(f"{name}.state.")
            its_name, entry = _split(rest, known)
            if entry:
                key = known[its_name]
                own = live["state"].get(key, {})
                treedef = state.setdefault(key, {k: treedef_of(item) for k, item in own.items()})
                # Other programs' values have the names of trees, too.
                treedef.setdefault(entry, None)
            elif rest in known and not index.plain_names:
                state[known[rest]] = None
    # Torch leaves empty dicts out.
    return {"state": state, "param_groups": groups} if state else {"param_groups": groups}


def saved_content(name: str, saved: SavedTrees, treedef: Any) -> Any:
    """Return the groups of a checkpoint, and at least the names of what has state.

    Not collective.
    """
    if not isinstance(treedef, dict):
        return saved.values(name, treedef)
    return {"state": {}} | {
        key: item if key == "state" and item else saved.values(f"{name}.{key}", item)
        for key, item in treedef.items()
    }


def saved_tree(
    name: str, saved: SavedTrees, treedef: Any, content: Any, live: Any, owners: Owners
) -> Any:
    """Return the tree of a checkpoint, with the live tensors that fit. Not collective."""
    if treedef is None:
        return None
    # Whose settings each parameter will have in a moment.
    settings = {
        its_name: group
        for group in [*live["param_groups"], *(content["param_groups"] or ())]
        for its_name in group["params"] or ()
    }
    state = treedef.get("state")
    if state is not None:
        state = {
            key: saved.tree(
                f"{name}.state.{key}",
                item,
                _in_reach(live["state"].get(key), owners[key][1], settings.get(key, {})),
                partial(_made, owners[key][1], settings.get(key, {})),
            )
            for key, item in state.items()
        }
    by_parameters = {tuple(group["params"]): group for group in live["param_groups"]}
    groups = [
        by_parameters.get(tuple(group["params"] or ()), {})
        for group in content["param_groups"] or ()
    ]
    tree = {"param_groups": saved.tree(f"{name}.param_groups", treedef["param_groups"], groups)}
    return {"state": state, **tree} if "state" in treedef else tree


def maker(name: str, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    """Return what makes state of an optimizer, for `SavedTrees.tree`, where it numbers parameters.

    Not collective.
    """
    groups = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    known = {str(number): pair for number, pair in enumerate(groups)}

    def make(full: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        number = full.removeprefix(f"{name}.state.").partition(".")[0]
        key, group = known.get(number, (None, {}))
        return _made(key, group, full, shape, dtype)

    return make


def _split(name: str, known: Mapping[str, Any]) -> tuple[str, str]:
    """Return the parameter, and what of its state, a name is of; the latter may be empty."""
    keys = name.split(".")
    for end in range(len(keys) - 1, 0, -1):
        its_name = ".".join(keys[:end])
        if its_name in known:
            return its_name, keys[end]
    return name, ""


def _made(
    key: Any,
    group: Mapping[str, Any],
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return state of a parameter, on its device, and sharded as it is."""
    import torch

    if not isinstance(key, torch.Tensor):
        return torch.empty(shape, dtype=dtype)
    if shape == (*key.shape, 2) and (dtype, key.dtype) == (torch.float64, torch.complex128):
        # Older versions did not write what pairs of numbers are.
        shape, dtype = tuple(key.shape), key.dtype
    if shape == tuple(key.shape) and shape:
        return torch.empty_like(key, dtype=dtype, requires_grad=False)
    on_device = name.rpartition(".")[2] not in _COUNTERS or _counts_on_device(group)
    return torch.empty(shape, dtype=dtype, device=key.device if on_device else "cpu")


def _counts_on_device(group: Mapping[str, Any]) -> bool:
    return bool(group.get("capturable") or group.get("fused"))


def _in_reach(own: Any, key: Any, group: Mapping[str, Any]) -> Any:
    """Return state without counters that steps would look for on another device."""
    if not isinstance(own, dict) or not _counts_on_device(group) or not hasattr(key, "device"):
        return own
    return {
        entry: value
        for entry, value in own.items()
        if entry not in _COUNTERS or getattr(value, "device", key.device) == key.device
    }
