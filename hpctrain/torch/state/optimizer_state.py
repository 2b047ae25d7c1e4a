"""Give an optimizer the state that a checkpoint has, for it to be read into."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpctrain.bulk.index import StateIndex
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.boxes import live_kind
from hpctrain.torch.state.flatten import optimizers_of, parameter_names
from hpctrain.torch.state.values import decode

if TYPE_CHECKING:
    import torch

_PREFIX = "optimizer.state."
_GROUPS = "optimizer.param_groups"
# Numbers that optimizers keep on the CPU, wherever the parameter is.
_COUNTERS = ("step", "mu_product")


def give_state(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
    model: torch.nn.Module | None,
    index: StateIndex,
) -> Callable[[], None]:
    """Give each parameter the state it has in a checkpoint, not filled yet.

    Not collective. An optimizer that has not stepped has no state, and one that has stepped may
    have state that the checkpoint has not.

    Parameters
    ----------
    optimizer
        Of the model's parameters; one or several.
    model
        The model.
    index
        Of the checkpoint.

    Returns
    -------
    Callable[[], None]
        Takes it back.
    """
    optimizers = optimizers_of(optimizer)
    before = [(each, dict(each.state)) for each in optimizers]
    names = {}
    if model is not None:
        _shard_again(model)
        names = parameter_names(model)
    saved = _saved_state(index, set(names.values()))
    dtypes = {piece.name: piece.dtype for file in index.files for piece in file.layout.pieces}

    def take_back() -> None:
        for each, state in before:
            each.state.clear()
            each.state.update(state)

    try:
        for each in optimizers:
            _give_state(each, names, saved, index, dtypes)
    except BaseException:
        take_back()
        raise
    return take_back


def _shard_again(model: torch.nn.Module) -> None:
    """Give a model of FSDP2 the parameters that optimizers know.

    After a forward pass without a backward one its root has whole ones.
    """
    # Who has not imported it has no such model, and need not wait for it.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


def check_groups(values: Mapping[str, Any], index: StateIndex) -> None:
    """Compare which parameters an optimizer groups with those of a checkpoint. Not collective.

    Parameters
    ----------
    values
        Of the live state.
    index
        Of the checkpoint.

    Raises
    ------
    CheckpointError
        If the checkpoint has no such group.
    """
    saved = _groups_in(index.values)
    if not saved:
        return
    for group in _groups_in(values):
        if group not in saved:
            raise CheckpointError(
                f"the optimizer has a group of {len(group)} parameters, the first of which is "
                f"{next(iter(group), 'none')}, and the checkpoint has groups of "
                f"{[len(names) for names in saved]} parameters, none of which is the same. Group "
                f"the parameters as they were when it was saved."
            )


def _groups_in(values: Mapping[str, Any]) -> list[list[str]]:
    """Return which parameters each group has."""
    if _GROUPS in values:
        return [list(group["params"]) for group in decode(values[_GROUPS])]
    # One of them has a tensor, a learning rate for instance: what is no tensor has names of its
    # own, in such a group down to its entries.
    groups: list[list[str]] = []
    while True:
        name = f"{_GROUPS}.{len(groups)}"
        if name in values:
            groups.append(list(decode(values[name])["params"]))
        elif f"{name}.params" in values:
            groups.append(list(decode(values[f"{name}.params"])))
        else:
            return groups


def _saved_state(index: StateIndex, parameters: set[str]) -> dict[str, list[str]]:
    """Return which entries the state of each parameter has."""
    saved: dict[str, list[str]] = {}
    for name in (*index.shapes, *index.aliases, *index.values):
        parameter, _, entry = name.removeprefix(_PREFIX).rpartition(".")
        if name.startswith(_PREFIX) and parameter in parameters:
            saved.setdefault(parameter, []).append(entry)
    return saved


def _give_state(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    saved: Mapping[str, Sequence[str]],
    index: StateIndex,
    dtypes: Mapping[str, str],
) -> None:
    groups = {tuple(group["params"]): group for group in decode(index.values.get(_GROUPS, []))}
    for live in optimizer.param_groups:
        called = [names.get(parameter, "") for parameter in live["params"]]
        # Whose settings it will have in a moment.
        group = groups.get(tuple(called), live)
        for parameter, name in zip(live["params"], called, strict=True):
            if name not in saved:
                optimizer.state.pop(parameter, None)
                continue
            state = dict(optimizer.state.get(parameter, {}))
            for entry in saved[name]:
                if entry not in state or _is_out_of_reach(entry, state[entry], parameter, group):
                    state[entry] = _entry(
                        f"{_PREFIX}{name}.{entry}", parameter, group, index, dtypes
                    )
            optimizer.state[parameter] = state


def _entry(
    name: str,
    parameter: torch.Tensor,
    group: Mapping[str, Any],
    index: StateIndex,
    dtypes: Mapping[str, str],
) -> Any:
    import torch

    if name in index.values:
        return decode(index.values[name])
    entry = name.rpartition(".")[2]
    name = index.aliases.get(name, name)
    dtype, shape = live_kind(name, dtypes[name], index)
    if shape == tuple(parameter.shape) and shape:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    on_device = entry not in _COUNTERS or _counts_on_device(group)
    return torch.empty(shape, dtype=dtype, device=parameter.device if on_device else "cpu")


def _counts_on_device(group: Mapping[str, Any]) -> bool:
    return bool(group.get("capturable") or group.get("fused"))


def _is_out_of_reach(
    entry: str, live: Any, parameter: torch.Tensor, group: Mapping[str, Any]
) -> bool:
    """Return whether steps would look for a counter on a device that it is not on."""
    is_counter = entry in _COUNTERS and hasattr(live, "device")
    return is_counter and _counts_on_device(group) and live.device != parameter.device
