"""Make a model, a data loader, a process ready for many ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from hpctrain.errors import ConfigError
from hpctrain.torch.device import get_device
from hpctrain.worker.context import active_worker

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader


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
        The same on every rank; rank 0's parameters count.
    move_to_device
        Whether to move it to `get_device`, or where to.
    parallel_strategy
        ``ddp``: every rank holds the whole model (DistributedDataParallel). ``fsdp``: parameters
        are sharded (FSDP2's ``fully_shard``: every direct child that has parameters, then the model
        itself). None: the model is only moved.
    parallel_strategy_kwargs
        For DistributedDataParallel or ``fully_shard``.

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
    device = get_device() if isinstance(move_to_device, bool) else move_to_device
    if move_to_device is not False:
        model = model.to(device)
    if parallel_strategy is None or world_size == 1:
        return model
    kwargs = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        if device.type == "cuda":
            kwargs.setdefault("device_ids", [device])
        return DistributedDataParallel(model, **kwargs)
    from torch.distributed.fsdp import fully_shard

    for child in model.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, **kwargs)
    fully_shard(model, **kwargs)
    return model


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> Any:
    """Let every rank load its own part of the data, onto its own device.

    Not collective.

    Parameters
    ----------
    data_loader
        As for one process: with the batch size of one rank.
    add_dist_sampler
        Whether to give it a DistributedSampler, which shuffles if the loader did. Each iteration is
        an epoch of its own for the shuffle. Loaders of iterable datasets, and loaders that have
        such a sampler, are left as they are.
    move_to_device
        Whether batches are moved to `get_device`.
    auto_transfer
        Whether the next batch is copied to a GPU while the current one is computed on.

    Returns
    -------
    DataLoader
        Or an iterable over it that moves batches.
    """
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

    world = active_worker("prepare_data_loader()").context.world
    has_sampler = isinstance(data_loader.sampler, DistributedSampler)
    iterable = isinstance(data_loader.dataset, IterableDataset)
    if add_dist_sampler and world.world_size > 1 and not has_sampler and not iterable:
        shuffle = isinstance(data_loader.sampler, RandomSampler)
        sampler: DistributedSampler[Any] = DistributedSampler(
            data_loader.dataset,
            num_replicas=world.world_size,
            rank=world.world_rank,
            shuffle=shuffle,
            drop_last=data_loader.drop_last,
        )
        data_loader = DataLoader(
            data_loader.dataset,
            batch_size=data_loader.batch_size,
            sampler=sampler,
            num_workers=data_loader.num_workers,
            collate_fn=data_loader.collate_fn,
            pin_memory=data_loader.pin_memory,
            drop_last=data_loader.drop_last,
            timeout=data_loader.timeout,
            worker_init_fn=data_loader.worker_init_fn,
            multiprocessing_context=data_loader.multiprocessing_context,
            generator=data_loader.generator,
            prefetch_factor=data_loader.prefetch_factor,
            persistent_workers=data_loader.persistent_workers,
        )
    device = get_device()
    if not move_to_device:
        return data_loader
    return DeviceLoader(data_loader, device, prefetch=auto_transfer and device.type == "cuda")


class DeviceLoader:
    """A data loader whose batches come on a device, and whose shuffle knows the epoch.

    Parameters
    ----------
    data_loader
        Where batches come from; its attributes are this object's too.
    device
        Where they go.
    prefetch
        Whether the next batch is copied on a stream of its own meanwhile.
    """

    def __init__(
        self, data_loader: DataLoader[Any], device: torch.device, *, prefetch: bool
    ) -> None:
        self._data_loader = data_loader
        self._device = device
        self._prefetch = prefetch
        self._epoch = 0

    def __len__(self) -> int:
        """Return the number of batches of this rank."""
        return len(self._data_loader)

    def __getattr__(self, name: str) -> Any:
        """Give the attributes of the data loader."""
        return getattr(self._data_loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, after a resume. Not collective."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of one epoch."""
        sampler = self._data_loader.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self._epoch)
        self._epoch += 1
        if self._prefetch:
            yield from self._prefetched()
            return
        for batch in self._data_loader:
            yield move_batch(batch, self._device)

    def _prefetched(self) -> Iterator[Any]:
        import torch

        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        ready: Any = None
        for batch in self._data_loader:
            with torch.cuda.stream(stream):
                moved = move_batch(batch, self._device)
            if ready is not None:
                yield ready
            torch.cuda.current_stream(self._device).wait_stream(stream)
            _record_stream(moved, torch.cuda.current_stream(self._device))
            ready = moved
        if ready is not None:
            yield ready


def move_batch(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on a device; what is not a tensor stays. Not collective."""
    if hasattr(batch, "to") and callable(batch.to):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move_batch(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_batch(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_batch(value, device) for value in batch)
    return batch


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


def _record_stream(batch: Any, stream: Any) -> None:
    # The allocator must not reuse a tensor's memory while the compute stream still reads it.
    if hasattr(batch, "record_stream"):
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _record_stream(value, stream)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            _record_stream(value, stream)
