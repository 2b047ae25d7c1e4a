"""Every rank draws one order, whatever a sampler draws with, and every sample is seen."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import hpctrain
from hpctrain import RunConfig, ScalingConfig, WorkerError
from hpctrain.torch import TorchTrainer, prepare_data_loader

torch = pytest.importorskip("torch")

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler  # noqa: E402

from hpctrain.torch import order  # noqa: E402
from hpctrain.torch.loader import PreparedLoader, shard_loader  # noqa: E402
from tests.worlds import make_world  # noqa: E402

Draw = Callable[[int], list[int]]


class Drawing(Sampler[int]):
    """Draws all samples with whatever it is given, perhaps inside of something."""

    def __init__(self, count: int, draw: Draw, **attributes: Any) -> None:
        self.count, self.draw = count, draw
        vars(self).update(attributes)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        return iter(self.draw(self.count))


def _with_python(count: int) -> list[int]:
    return random.sample(range(count), count)


def _with_numpy(count: int) -> list[int]:
    return np.random.permutation(count).tolist()


def _with_torch(count: int) -> list[int]:
    return torch.randperm(count).tolist()


def _own_python(seed: int, count: int) -> Sampler[int]:
    own = random.Random(seed)
    return Drawing(count, lambda n: own.sample(range(n), n), own=own)


def _own_numpy(seed: int, count: int) -> Sampler[int]:
    own = np.random.default_rng(seed)
    return Drawing(count, lambda n: own.permutation(n).tolist(), own={"in": [own]})


def _old_numpy(seed: int, count: int) -> Sampler[int]:
    own = np.random.RandomState(seed)
    return Drawing(count, lambda n: own.permutation(n).tolist(), own=own)


def _own_torch(seed: int, count: int) -> Sampler[int]:
    own = torch.Generator().manual_seed(seed)
    return Drawing(count, lambda n: torch.randperm(n, generator=own).tolist(), own=own)


def _inside(seed: int, count: int) -> Sampler[int]:
    inner = _own_python(seed, count)
    return Drawing(count, lambda n: list(inner), inner=inner)


def _of_torch(seed: int, count: int) -> Sampler[int]:
    generator = torch.Generator().manual_seed(seed)
    return RandomSampler(range(count), num_samples=count, generator=generator)


SAMPLERS: dict[str, Callable[[int, int], Sampler[int]]] = {
    "random": lambda seed, count: Drawing(count, _with_python),
    "np.random": lambda seed, count: Drawing(count, _with_numpy),
    "torch": lambda seed, count: Drawing(count, _with_torch),
    "random.Random": _own_python,
    "np.random.Generator": _own_numpy,
    "np.random.RandomState": _old_numpy,
    "torch.Generator": _own_torch,
    "inside": _inside,
    "RandomSampler": _of_torch,
}


def _loader(sampler: Sampler[int], rank: int, size: int, **loader: Any) -> PreparedLoader:
    if loader.pop("in_batches", False):
        loader["batch_sampler"] = BatchSampler(sampler, loader.pop("batch_size"), drop_last=False)
    else:
        loader["sampler"] = sampler
    data = DataLoader(range(len(sampler)), **loader)  # type: ignore[arg-type]
    return PreparedLoader(shard_loader(data, make_world(rank, size)), None, prefetch=False)


def _seen(loader: Any) -> list[int]:
    return [int(index) for batch in loader for index in batch]


def test_all_samples_are_seen_whatever_a_sampler_draws_with_and_ranks_are_seeded_with(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def example(chosen: np.random.Generator) -> None:
        kind = list(SAMPLERS)[chosen.integers(len(SAMPLERS))]
        size, count = int(chosen.integers(1, 5)), int(chosen.integers(1, 30))
        options = {
            "batch_size": int(chosen.integers(1, 6)),
            "in_batches": bool(chosen.integers(2)),
        }
        epochs: list[list[int]] = [[], []]
        for rank in range(size):
            random.seed(rank)
            np.random.seed(rank)
            torch.manual_seed(rank)
            # Ranks have not drawn equally often before, either.
            sampler = SAMPLERS[kind](rank, count)
            loader = _loader(sampler, rank, size, **options)
            before = random.getstate(), np.random.get_state()[1].tolist()
            for epoch in epochs:
                epoch += _seen(loader)
            assert before == (random.getstate(), np.random.get_state()[1].tolist())
        for epoch in epochs:
            assert set(epoch) == set(range(count))
            # What is given out twice fills up the last round of all ranks.
            most = (size - 1) * (options["batch_size"] if options["in_batches"] else 1)
            assert len(epoch) - count <= most
        assert count < 12 or epochs[0] != epochs[1], kind

    each_example(example)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("in_batches", [False, True])
def test_epochs_are_counted_alike_with_worker_processes(workers: int, in_batches: bool) -> None:
    def epochs(num_workers: int) -> list[list[int]]:
        loader = _loader(
            _own_numpy(0, 24), 0, 2, batch_size=2, in_batches=in_batches, num_workers=num_workers
        )
        first = [_seen(loader) for _ in range(2)]
        loader.set_epoch(7)
        return [*first, _seen(loader)]

    assert epochs(workers) == epochs(0)
    alone = _loader(_own_numpy(0, 24), 0, 2, batch_size=2, in_batches=in_batches)
    for epoch, seen in zip((0, 1, 7), epochs(workers), strict=True):
        alone.set_epoch(epoch)
        assert _seen(alone) == seen


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("options", [{"batch_size": 2}, {"batch_size": 2, "in_batches": True}])
def test_a_look_at_the_first_batch_is_no_epoch(workers: int, options: dict[str, Any]) -> None:
    options = {**options, "num_workers": workers}
    looking = _loader(_own_numpy(0, 24), 0, 2, **options)
    other = _loader(_own_numpy(0, 24), 0, 2, **options)
    first = next(iter(looking)).tolist()
    assert next(iter(looking)).tolist() == first
    epochs = [_seen(looking) for _ in range(2)]
    assert epochs == [_seen(other) for _ in range(2)]
    assert epochs[0][:2] == first
    next(iter(looking))
    looking.set_epoch(5)
    other.set_epoch(5)
    assert _seen(looking) == _seen(other)


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_look_leaves_a_generator_that_nobody_can_seed_as_it_is_on_other_ranks(
    in_batches: bool,
) -> None:
    def hidden() -> Sampler[int]:
        own = random.Random(0)
        return Drawing(24, lambda n: own.sample(range(n), n))

    options = {"batch_size": 2, "in_batches": in_batches}
    looking, other = (_loader(hidden(), 0, 2, **options) for _ in range(2))
    for _ in range(2):
        first = next(iter(looking)).tolist()
        assert next(iter(looking)).tolist() == first
        seen = _seen(looking)
        assert seen[:2] == first
        assert seen == _seen(other)


class OfEpoch(Drawing):
    def __init__(self, count: int) -> None:
        super().__init__(count, lambda n: random.Random(self.epoch).sample(range(n), n), epoch=0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("in_batches", [False, True])
def test_the_epoch_is_set_for_a_sampler_that_knows_epochs_itself(in_batches: bool) -> None:
    loader = _loader(OfEpoch(24), 0, 1, batch_size=2, in_batches=in_batches)
    for epoch in (7, 1, 7, 0):
        loader.set_epoch(epoch)
        assert _seen(loader) == random.Random(epoch).sample(range(24), 24)


def test_an_iteration_that_is_left_later_is_an_epoch() -> None:
    loader = _loader(_own_numpy(0, 24), 0, 1, batch_size=2)
    batches = iter(loader)
    left = [next(batches).tolist() for _ in range(2)]
    assert [b.tolist() for b in loader][:2] != left


@pytest.mark.mpi
def test_on_ranks_every_sample_is_seen_or_the_run_fails(tmp_path: Path) -> None:
    def train() -> Any:
        from torch import distributed

        rank = hpctrain.get_context().get_world_rank()
        random.seed(rank)
        np.random.seed(rank)
        torch.manual_seed(rank)
        seen = {}
        for kind, make in SAMPLERS.items():
            loader = prepare_data_loader(
                DataLoader(range(20), batch_size=2, sampler=make(rank, 20))
            )
            if rank == 0:
                next(iter(loader))
            seen[kind] = [_seen(loader), _seen(loader)]
        ranks: list[Any] = [None] * 2
        distributed.all_gather_object(ranks, seen)
        for kind in SAMPLERS:
            for epoch in range(2):
                drawn = sorted(index for r in ranks for index in r[kind][epoch])
                assert drawn == list(range(20)), (kind, epoch)
        hidden = random.Random(rank)
        closed = Drawing(20, lambda n: hidden.sample(range(n), n))
        _seen(prepare_data_loader(DataLoader(range(20), sampler=closed)))

    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0, launcher="local"),
    )
    with pytest.raises(WorkerError, match="Drawing draws another order on this rank"):
        trainer.fit()


def test_orders_are_compared_by_a_python_in_fips_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashlib, "blake2b", Mock(side_effect=ValueError))
    assert order._digest([1, 2]) == order._digest([1, 2]) != order._digest([2, 1])
