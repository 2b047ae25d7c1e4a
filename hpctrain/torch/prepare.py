"""Make a model, a data loader, a process ready for many ranks."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from hpctrain.data.arguments import flag
from hpctrain.errors import ConfigError
from hpctrain.torch.device import get_device
from hpctrain.worker.context import active_worker

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

    from hpctrain.torch.loader import PreparedLoader


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: Literal["ddp", "fsdp"] | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Move a model to this rank's device and let its gradients be averaged over the ranks.

    Collective, if there is more than one rank.

    Parameters
    ----------
    model
        The same on every rank; rank 0's parameters and buffers count.
    move_to_device
        Whether to move it to `get_device`, or where to. False where it lies right already: a model
        on several GPUs, or on the meta device.
    parallel_strategy
        ``ddp``: every rank holds the whole model (DistributedDataParallel). ``fsdp``: parameters
        are sharded (FSDP2's ``fully_shard``: every direct child, and every child of a ModuleList or
        ModuleDict, then the model itself; children that share parameters stay with the model).
        None: the model is only moved.
    parallel_strategy_kwargs
        For DistributedDataParallel or ``fully_shard``. With a ``mesh`` of its own for the latter,
        parameters are not taken from rank 0.

    Returns
    -------
    torch.nn.Module
        With one rank the model itself, else wrapped (ddp) or sharded in place (fsdp).

    Raises
    ------
    ConfigError
        If the strategy is unknown.
    """
    if parallel_strategy not in ("ddp", "fsdp", None):
        raise ConfigError(f"parallel_strategy={parallel_strategy!r}: 'ddp', 'fsdp' or None.")
    world_size = active_worker("prepare_model()").context.world.world_size
    if move_to_device is not False:
        model = model.to(get_device() if move_to_device is True else move_to_device)
    # Only where `accelerate` was called: that imports it.
    if (amp := sys.modules.get("hpctrain.torch.amp")) is not None:
        amp.autocast(model)
    if parallel_strategy is None or world_size == 1:
        return model
    kwargs = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        devices = {tensor.device for tensor in chain(model.parameters(), model.buffers())}
        if len(devices) == 1 and next(iter(devices)).type == "cuda":
            kwargs.setdefault("device_ids", list(devices))
        return DistributedDataParallel(model, **kwargs)
    _shard(model, world_size, kwargs)
    return model


def _shard(model: torch.nn.Module, world_size: int, kwargs: dict[str, Any]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if "mesh" not in kwargs:
        # torch's own mesh is of GPUs wherever there are any, even for workers that use none.
        device_type = get_device().type
        kwargs["mesh"] = init_device_mesh(device_type, (world_size,))
        _take_from_rank_0(model, device_type)
    children = [
        child for child in _callable_children(model) if any(True for _ in child.parameters())
    ]
    owners = Counter(id(parameter) for child in children for parameter in child.parameters())
    owners.update(id(parameter) for parameter in _own_parameters(model, children))
    for child in children:
        # Sharded one by one, children would each get a parameter of their own of a shared one.
        if all(owners[id(parameter)] == 1 for parameter in child.parameters()):
            fully_shard(child, **kwargs)
    fully_shard(model, **kwargs)


def _callable_children(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Return the children that are called as functions, through those that only hold others."""
    import torch

    for child in dict.fromkeys(model.children()):
        if type(child).forward is not torch.nn.Module.forward or "forward" in vars(child):
            yield child
        else:
            yield from _callable_children(child)


def _own_parameters(
    model: torch.nn.Module, children: list[torch.nn.Module]
) -> Iterator[torch.nn.Parameter]:
    """Return the parameters of a model's modules that are not inside of any of `children`."""
    inside = {module for child in children for module in child.modules()}
    for module in model.modules():
        if module not in inside:
            yield from module.parameters(recurse=False)


def _take_from_rank_0(model: torch.nn.Module, device_type: str) -> None:
    """Give every rank the parameters and buffers of rank 0, as DDP does. Collective."""
    from torch import distributed

    for tensor in chain(model.parameters(), model.buffers()):
        # On the meta device there is nothing yet; elsewhere the group may have no backend.
        if tensor.device.type == device_type:
            values = tensor.detach()
            dense = values.contiguous()
            distributed.broadcast(dense, src=0)
            if dense is not values:
                values.copy_(dense)


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
    global_batch_size: int | None = None,
) -> PreparedLoader:
    """Let every rank load its own part of the data, onto its own device.

    Not collective. The data is shared out anew for the ranks of each attempt, whatever their
    number.

    Parameters
    ----------
    data_loader
        As for one process: with the batch size of one rank, which stays when the number of ranks
        changes, so that the batch of all ranks together changes with it.
    add_dist_sampler
        Whether to share the data out over the ranks: a DistributedSampler that shuffles if the
        loader did. What another sampler draws, or a sampler of batches, is shared out itself: it
        draws the same on every rank, from the generators of Python, NumPy and torch, or from any
        that is an attribute of it; all of them are seeded with the epoch meanwhile. All ranks get
        equally much, so where that is uneven a few samples come twice, unless the loader
        has ``drop_last``. Loaders of iterable datasets, and loaders that have a DistributedSampler,
        are left as they are.
    move_to_device
        Whether batches are moved to `get_device`.
    auto_transfer
        Whether the next batch is copied to a GPU while the current one is computed on. Worth it
        with ``pin_memory=True``.
    global_batch_size
        Samples of a batch of all ranks together, instead of the loader's batch size: the number of
        batches of an epoch, and with it what a learning rate means, stays when the number of ranks
        changes. Where it cannot be divided evenly, the batches of some ranks have one sample more;
        what averages over ranks, as DistributedDataParallel does, weighs all ranks alike. Only the
        last batch of an epoch is filled up, with less than one sample a rank that come twice,
        unless the loader has ``drop_last``.

    Returns
    -------
    PreparedLoader
        A DataLoader with ``set_epoch(epoch)``, for after a resume. Each iteration is an epoch of
        its own for the shuffle, the one after the last, unless ``set_epoch()`` says which, also to
        a sampler that has a ``set_epoch()`` itself; one that is left after its first batch does not
        count, so that a rank can look at the data. The order depends on the epoch only, neither on
        seeds nor on the number of earlier epochs.

    Raises
    ------
    ConfigError
        If a sampler cannot say how much it draws, the loader's class has an ``__iter__`` of its
        own, `global_batch_size` does not fit the loader, or a flag is neither True nor False.
        In an epoch in which ranks draw different orders all the same, by the loader.
    """
    from hpctrain.torch.loader import PreparedLoader, shard_loader

    world = active_worker("prepare_data_loader()").context.world
    add_dist_sampler = flag("add_dist_sampler", add_dist_sampler)
    move_to_device = flag("move_to_device", move_to_device)
    auto_transfer = flag("auto_transfer", auto_transfer)
    if global_batch_size is not None and not add_dist_sampler:
        raise ConfigError(
            f"prepare_data_loader(global_batch_size={global_batch_size}) shares the data out, but "
            f"add_dist_sampler=False. Drop one of the two."
        )
    if add_dist_sampler:
        data_loader = shard_loader(data_loader, world, global_batch_size=global_batch_size)
    if not move_to_device:
        return PreparedLoader(data_loader, None, prefetch=False)
    device = get_device()
    return PreparedLoader(data_loader, device, prefetch=auto_transfer and device.type == "cuda")


def enable_reproducibility(seed: int = 0) -> None:
    """Seed Python, NumPy and torch, and let torch choose deterministic algorithms.

    Not collective. Every rank is seeded alike; add the rank to the seed where ranks should differ.
    """
    import numpy
    import torch

    from hpctrain import environ

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    # cuBLAS is deterministic only with a workspace of fixed size (its documentation).
    environ.export({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, keep_existing=True)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
