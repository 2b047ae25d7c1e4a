"""What rank 0 sends each rank before a load: the same plans as with all of it, and far less."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hpctrain.bulk.index import IndexedFile
from hpctrain.bulk.state_file import Chunk, StateFile
from hpctrain.errors import CheckpointError
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads
from hpctrain.torch.state.layout.block_targets import FileTargets
from hpctrain.torch.state.layout.load_parts import (
    Digests,
    IndexPart,
    share_index,
    share_reads,
    split_index,
    wants_of,
)
from hpctrain.torch.state.layout.load_plan import (
    LiveShards,
    Schedule,
    plan_global,
    plan_local,
    requests_of,
)
from hpctrain.torch.state.layout.shards import LocalShard, Shard
from hpctrain.torch.state.layout.share_out import Holders
from hpctrain.torch.state.ranks import exchange
from tests.counting_comm import Counting

Region = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""


def _regions(rng: random.Random, shape: Sequence[int], ranks: int) -> list[Region | None]:
    """Return what each rank has of a tensor: all of it, or a part of a grid or of one axis."""
    kind = rng.choice(["whole", "one axis", "one axis", "grid"])
    if kind == "whole" or not shape:
        return [((0,) * len(shape), tuple(shape))] * ranks
    axes = [rng.randrange(len(shape))] if kind == "one axis" else range(len(shape))
    cuts = []
    for axis, size in enumerate(shape):
        parts = rng.randint(1, max(1, ranks)) if axis in axes else 1
        inner = sorted(rng.randrange(size + 1) for _ in range(parts - 1))
        cuts.append(list(itertools.pairwise([0, *inner, size])))
    cells: list[Region] = [
        (tuple(low for low, _ in cell), tuple(high - low for low, high in cell))
        for cell in itertools.product(*cuts)
    ]
    # Of a cell there may be no holder but rank 0; a rank has one cell of a tensor at most.
    if len(cells) > ranks:
        return [((0,) * len(shape), tuple(shape))] * ranks
    held = [*cells, *rng.choices([None, *cells], k=ranks - len(cells))]
    rng.shuffle(held)
    return held


def _case(seed: int) -> tuple[list[IndexedFile], list[LiveShards]]:
    """Return the files of some ranks, and what other ranks want of them."""
    rng = random.Random(seed)
    writers, readers = rng.randint(1, 5), rng.randint(2, 5)
    shapes = {
        f"t{i}": tuple(rng.choice([0, 1, 2, 5, 9, 1500]) for _ in range(rng.randint(0, 3)))
        for i in range(rng.randint(1, 12))
    }
    written: list[list[Chunk]] = [[] for _ in range(writers)]
    live: list[dict[str, list[LocalShard]]] = [{} for _ in range(readers)]
    for name, shape in shapes.items():
        dtype, torch_dtype = rng.choice([("F32", torch.float32), ("I64", torch.int64)])
        if torch.Size(shape).numel() > 10**7:
            continue
        for chunks, region in zip(written, _regions(rng, shape, writers), strict=True):
            if region is not None:
                chunks.append(Chunk(name=name, dtype=dtype, shape=region[1], offsets=region[0]))
        for mine, region in zip(live, _regions(rng, shape, readers), strict=True):
            if region is not None:
                # Under another name here, as shared weights may be.
                shard = Shard(f"its {name}", dtype, shape, *region)
                mine[name] = [LocalShard(shard, torch.empty(region[1], dtype=torch_dtype))]
    files = [
        IndexedFile(name=f"file {number}", layout=StateFile.plan(chunks))
        for number, chunks in enumerate(written)
    ]
    return files, list(live)


def _agreed(
    comm: Any, files: Sequence[IndexedFile], live: LiveShards
) -> tuple[IndexPart, dict[int, FileTargets], Schedule, Digests]:
    """Plan as a load does."""
    wants = wants_of(live)
    digests = exchange(comm, "loading", wants.digest())
    part = share_index(wants, digests, files if comm.rank == 0 else (), ranks=comm)
    targets = plan_local(live, part.wanted, directory=Path("d"))
    requests = requests_of(targets)
    own = {number: (f"digest {number}",) for number in part.verified}
    are_alike = len(set(map(tuple, exchange(comm, "planning reads", requests)))) == 1
    return part, targets, *share_reads(requests, own, are_alike=are_alike, ranks=comm)


def _copies(targets: Mapping[int, FileTargets]) -> Any:
    return {
        (number, block): (target.low, target.high, [rows for _, rows in target.copies])
        for number, its in targets.items()
        for block, target in its.blocks.items()
    }


@pytest.mark.parametrize("most", [2**30, 0], ids=["parts", "parts that would be too large"])
@pytest.mark.parametrize("seed", range(40))
def test_each_rank_plans_as_if_it_had_the_whole_index(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpctrain.torch.state.layout.load_parts._MOST_BYTES", most)
    files, live = _case(seed)
    size = len(live)

    def plan(comm: ThreadComm) -> Any:
        part, targets, schedule, digests = _agreed(comm, files, live[comm.rank])
        return part.verified, _copies(targets), schedule, digests

    results = run_on_threads(size, plan)
    expected = [plan_local(its, dict(enumerate(files)), directory=Path("d")) for its in live]
    whole = plan_global([requests_of(targets) for targets in expected])
    verified = Counter[int]()
    for rank, (its, copies, schedule, digests) in enumerate(results):
        verified.update(its.keys())
        assert all(file == files[number] for number, file in its.items())
        assert copies == _copies(expected[rank])
        assert schedule.own[rank] == whole.own[rank]
        assert schedule.shared[rank] == whole.shared[rank]
        assert [t for t in schedule.transfers if rank in (t.reader, t.receiver)] == [
            t for t in whole.transfers if rank in (t.reader, t.receiver)
        ]
        read = {number for number, _ in (*whole.own[rank], *whole.shared[rank])}
        assert digests.items() >= {number: (f"digest {number}",) for number in read}.items()
    assert verified == Counter(range(len(files)))


def _sharded(ranks: int, *, tensors: int) -> tuple[list[IndexedFile], list[LiveShards]]:
    """Return files and live shards of tensors of 8 rows a rank, and of a scalar of all."""
    live: list[dict[str, list[LocalShard]]] = [{} for _ in range(ranks)]
    files = []
    for rank in range(ranks):
        shards = [
            Shard(f"tensor {i}", "F32", (8 * ranks, 3), (8 * rank, 0), (8, 3))
            for i in range(tensors)
        ]
        scalar = Shard("step", "F32", (), (), ())
        chunks = [shard.chunk(0, 8) for shard in shards] + [scalar.chunk(0, 1)] * (rank == 0)
        layout = StateFile.plan(chunks)
        files.append(IndexedFile(name=f"state-{rank:05}", layout=layout))
        for shard in (*shards, scalar):
            live[rank][shard.name] = [LocalShard(shard, torch.empty(shard.sizes))]
    return files, list(live)


def test_what_a_rank_receives_does_not_grow_with_the_number_of_ranks() -> None:
    received = []
    for size in (2, 4, 8):
        files, live = _sharded(size, tensors=40)

        def plan(comm: ThreadComm) -> tuple[int, int]:
            counting: Any = Counting(comm)
            _agreed(counting, files, live[comm.rank])  # noqa: B023
            return counting.received, max(counting.agreed)

        _, *others = run_on_threads(size, plan)
        received.append(max(alone for alone, _ in others))
        # Of what all ranks receive each sends a digest, a length, or some requests.
        assert max(agreed for _, agreed in others) < 128
    # Numbers of more digits.
    assert max(received) < received[0] + 100


@pytest.mark.parametrize("num_replicated", [0, 40], ids=["sharded", "replicated too"])
def test_a_large_index_goes_whole_to_all_only_if_parts_would_repeat_it(
    num_replicated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpctrain.torch.state.layout.load_parts._MOST_BYTES", 0)
    files, live = _sharded(4, tensors=5)
    everywhere = [Shard(f"whole {i}", "F32", (2,), (0,), (2,)) for i in range(num_replicated)]
    chunks = [shard.chunk(0, 2) for shard in everywhere]
    files.append(IndexedFile(name="state-00004", layout=StateFile.plan(chunks)))
    for its in live:
        its.update((s.name, [LocalShard(s, torch.empty(s.sizes))]) for s in everywhere)
    everyone = [Holders(ranks=(rank,), held=wants_of(its)) for rank, its in enumerate(live)]

    parts = split_index(files, everyone)

    assert [bool(part) for part in parts] == [not num_replicated] * 4


def test_ranks_that_want_the_same_receive_the_index_once() -> None:
    files, live = _sharded(3, tensors=5)
    whole = {}
    for name, (local,) in live[0].items():
        shape = local.shard.shape
        shard = local.shard._replace(offsets=(0,) * len(shape), sizes=shape)
        whole[name] = [LocalShard(shard, torch.empty(shape))]

    def plan(comm: ThreadComm) -> Any:
        counting: Any = Counting(comm)
        part, *_ = _agreed(counting, files, whole)
        return counting.stages, list(part.wanted.values()), list(part.verified)

    stages, everything, verified = zip(*run_on_threads(2, plan), strict=True)
    assert list(everything) == [files] * 2
    assert list(verified) == [[0, 2], [1]]
    assert set(map(tuple, stages)) == {
        ("loading", "sharing the index", "planning reads", "sharing the reads")
    }


def test_what_rank_0_cannot_look_up_is_an_error_on_all_ranks() -> None:
    files, live = _sharded(3, tensors=2)
    flat = Chunk(name="tensor 1", dtype="F32", shape=(3,), offsets=(0,))
    files.append(IndexedFile(name="other", layout=StateFile.plan([flat])))

    def plan(comm: ThreadComm) -> str:
        with pytest.raises(CheckpointError) as caught:
            _agreed(comm, files, live[comm.rank])
        return str(caught.value)

    messages = run_on_threads(3, plan)
    assert len(set(messages)) == 1
    assert messages[0].startswith("rank 0 of 3 failed: ")


def test_what_a_rank_wants_and_no_file_has_is_its_error() -> None:
    files, live = _sharded(2, tensors=2)

    def plan(comm: ThreadComm) -> str:
        wants = wants_of(live[comm.rank])
        digests = exchange(comm, "loading", wants.digest())
        kept = files[:1] if comm.rank == 0 else ()
        part = share_index(wants, digests, kept, ranks=comm)
        try:
            plan_local(live[comm.rank], part.wanted, directory=Path("d"))
        except CheckpointError as error:
            return str(error)
        return ""

    first, second = run_on_threads(2, plan)
    assert not first
    assert second.startswith("d has 0 of the 24 elements of tensor 0 that this rank holds")
