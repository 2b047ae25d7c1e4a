"""What a training function finds on two ranks. One run; each test looks at a part of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.torch import TorchConfig, TorchTrainer
from tests import runs

pytestmark = pytest.mark.mpi

Findings = list[dict[str, Any]]
NUM_SAMPLES = 10


def _examination() -> Callable[[], Findings | None]:
    """Return the training function; what it needs is inside, so that it travels by value."""

    def environment() -> dict[str, Any]:
        import torch
        from torch import distributed

        import hpctrain.torch

        names = (
            *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
            *("LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "ACCELERATE_TORCH_DEVICE"),
            "ACCELERATE_USE_CPU",
        )
        default = distributed.distributed_c10d._get_default_group()
        return {
            "variables": {name: os.environ.get(name) for name in names},
            "threads": torch.get_num_threads(),
            "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"],
            "backend": distributed.get_backend(),
            "place": [distributed.get_rank(), distributed.get_world_size()],
            "timeout_s": default._get_backend(torch.device("cpu")).options._timeout.total_seconds(),
            "device": str(hpctrain.torch.get_device()),
            "devices": [str(device) for device in hpctrain.torch.get_devices()],
        }

    def make_model(seed: int) -> Any:
        import torch
        from torch import nn

        class Net(nn.Module):
            """Has what fully_shard() is picky about: a list of layers, and a shared parameter."""

            def __init__(self) -> None:
                super().__init__()
                self.embed = nn.Linear(3, 8, bias=False)
                self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
                self.unembed = nn.Linear(3, 8, bias=False)
                self.unembed.weight = self.embed.weight
                self.scale = nn.Parameter(torch.ones(3))
                self.register_buffer("shift", torch.randn(3))

            def forward(self, x: Any) -> Any:
                x = self.embed(x)
                for layer in self.layers:
                    x = layer(x).tanh()
                return (x @ self.unembed.weight) * self.scale + self.shift

        torch.manual_seed(seed)
        return Net()

    def train(model: Any, inputs: Any, targets: Any) -> float:
        import torch

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loss = torch.zeros(())
        for _ in range(4):
            optimizer.zero_grad()
            loss = ((model(inputs) - targets) ** 2).mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    def parallel_training(rank: int) -> dict[str, Any]:
        import torch
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        from torch.distributed.tensor import DTensor

        import hpctrain.torch

        torch.manual_seed(7)
        inputs, targets = torch.randn(8, 3), torch.randn(8, 3)
        mine = slice(4 * rank, 4 * rank + 4)
        single = make_model(0)
        train(single, inputs, targets)

        # Rank 1's own parameters are others: rank 0's count.
        ddp: Any = hpctrain.torch.prepare_model(make_model(rank))
        train(ddp, inputs[mine], targets[mine])
        fsdp = hpctrain.torch.prepare_model(make_model(rank), parallel_strategy="fsdp")
        shares = [p.to_local().numel() for p in fsdp.parameters() if isinstance(p, DTensor)]
        train(fsdp, inputs[mine], targets[mine])
        full = get_model_state_dict(fsdp, options=StateDictOptions(full_state_dict=True))

        def lists(state: Any) -> dict[str, Any]:
            return {name: tensor.tolist() for name, tensor in state.items()}

        moved = hpctrain.torch.prepare_model(make_model(0), parallel_strategy=None)
        return {
            "single": lists(single.state_dict()),
            "ddp": lists(ddp.module.state_dict()),
            "ddp_type": type(ddp).__name__,
            "fsdp": lists(full),
            "fsdp_type": type(fsdp).__name__,
            "fsdp_units": [type(m).__name__ for m in fsdp.modules() if hasattr(m, "unshard")],
            "fsdp_parameters": len(list(fsdp.parameters())),
            "fsdp_shares": shares,
            "only_moved": type(moved).__name__,
        }

    def loading(rank: int) -> dict[str, Any]:
        import torch
        from torch.utils.data import (
            BatchSampler,
            DataLoader,
            Dataset,
            DistributedSampler,
            IterableDataset,
            RandomSampler,
            SequentialSampler,
            WeightedRandomSampler,
        )

        from hpctrain.torch import prepare_data_loader

        class Numbers(Dataset[int]):
            def __len__(self) -> int:
                return NUM_SAMPLES

            def __getitem__(self, index: int) -> int:
                return index

        class Stream(IterableDataset[int]):
            def __iter__(self) -> Any:
                return iter(range(3))

        def seen(loader: Any) -> list[int]:
            return [int(index) for batch in loader for index in batch.reshape(-1)]

        numbers = Numbers()
        # Ranks are seeded differently, which must not matter.
        torch.manual_seed(rank)
        shuffled = prepare_data_loader(DataLoader(numbers, batch_size=2, shuffle=True))
        first = [seen(shuffled) for _ in range(3)]
        resumed = prepare_data_loader(
            DataLoader(
                numbers,
                batch_size=2,
                shuffle=True,
                generator=torch.Generator().manual_seed(rank),
            )
        )
        resumed.set_epoch(2)
        by_set_epoch = seen(resumed)
        sampler: Any = resumed.sampler
        sampler.set_epoch(1)
        by_sampler = seen(resumed)
        weights = WeightedRandomSampler([1.0] * 3 + [0.0] * 7, NUM_SAMPLES)
        weighted = prepare_data_loader(DataLoader(numbers, batch_size=2, sampler=weights))
        batches = BatchSampler(RandomSampler(numbers), batch_size=2, drop_last=False)
        batched = prepare_data_loader(DataLoader(numbers, batch_sampler=batches))
        own: DistributedSampler[int] = DistributedSampler(numbers, shuffle=False)
        whole = DataLoader(numbers, batch_size=4, shuffle=True)
        bare = prepare_data_loader(whole, add_dist_sampler=False, move_to_device=False)
        forked = prepare_data_loader(
            DataLoader(
                numbers,
                batch_size=1,
                num_workers=1,
                persistent_workers=True,
                prefetch_factor=3,
                worker_init_fn=lambda _: None,
            )
        )
        epochs_of_weighted = [seen(weighted), seen(weighted)]
        before = torch.get_rng_state()
        list(weighted.sampler)
        rng_kept = bool((torch.get_rng_state() == before).all())
        return {
            "shuffled": first,
            "set_epoch": by_set_epoch,
            "sampler.set_epoch": by_sampler,
            "is_loader": isinstance(shuffled, DataLoader),
            "sampler_type": isinstance(shuffled.sampler, DistributedSampler),
            "length": len(shuffled),
            "plain": seen(prepare_data_loader(DataLoader(numbers, batch_size=3))),
            "drop_last": seen(
                prepare_data_loader(DataLoader(numbers, batch_size=3, drop_last=True))
            ),
            "unbatched": [
                int(i) for i in prepare_data_loader(DataLoader(numbers, batch_size=None))
            ],
            "weighted": epochs_of_weighted,
            "rng_kept": rng_kept,
            "batched": [batch.tolist() for batch in batched],
            "own": prepare_data_loader(DataLoader(numbers, sampler=own)).sampler is own,
            "bare": sorted(seen(bare)),
            "iterable": seen(prepare_data_loader(DataLoader(Stream(), batch_size=2))),
            "forked": [seen(forked), seen(forked)],
            "forked_settings": [
                forked.num_workers,
                forked.persistent_workers,
                forked.prefetch_factor,
                forked.worker_init_fn is not None,
            ],
            "sequential": type(bare.sampler) is RandomSampler
            and type(DataLoader(numbers).sampler) is SequentialSampler,
        }

    def third_party(rank: int) -> dict[str, Any]:
        import torch
        from torch import distributed

        def total() -> float:
            value = torch.tensor([rank + 1.0])
            distributed.all_reduce(value)
            return value.item()

        # As accelerate and others do where they find a group ...
        found = distributed.is_initialized()
        with_ours = total()
        # ... and where they do not: env:// finds the port taken, by a store that it may share.
        distributed.destroy_process_group()
        distributed.init_process_group("gloo", init_method="env://")
        with_theirs = total()
        if rank == 0:
            # One rank forgets, or does not: the shutdown must not wait for the other.
            distributed.destroy_process_group()
        return {"found": found, "ours": with_ours, "theirs": with_theirs}

    def examine() -> Findings | None:
        from torch import distributed

        import hpctrain
        from hpctrain.worker.context import active_worker

        rank = hpctrain.get_context().get_world_rank()
        comm = active_worker("examine()").comm
        found = {
            "environment": environment(),
            "parallel": parallel_training(rank),
            "loading": loading(rank),
            "third_party": third_party(rank),
        }
        assert distributed.is_available()
        findings: Findings = comm.allgather(found)
        hpctrain.report({"ranks": len(findings)})
        return findings

    return examine


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    storage: Path = tmp_path_factory.mktemp("two-ranks")
    result = runs.fit(
        _examination(),
        storage,
        trainer=TorchTrainer,
        torch_config=TorchConfig(timeout_s=90),
        resources_per_worker={"CPU": 2},
    )
    found: Findings = result.return_value
    return found


def test_each_rank_finds_its_place_in_the_environment(findings: Findings) -> None:
    for rank, found in enumerate(findings):
        variables = found["environment"]["variables"]
        assert int(variables.pop("MASTER_PORT")) > 0
        assert variables == {
            "MASTER_ADDR": "localhost",
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "NODE_RANK": "0",
            "ACCELERATE_TORCH_DEVICE": "cpu",
            "ACCELERATE_USE_CPU": "true",
        }
        assert found["environment"]["place"] == [rank, 2]


def test_the_group_is_gloo_on_cpus_with_the_timeout_that_was_asked_for(findings: Findings) -> None:
    for found in findings:
        assert found["environment"]["backend"] == "gloo"
        assert found["environment"]["timeout_s"] == 90
        assert found["environment"]["device"] == "cpu"
        assert found["environment"]["devices"] == ["cpu"]


def test_torch_computes_with_the_cpus_of_the_worker(findings: Findings) -> None:
    for found in findings:
        assert found["environment"]["threads"] == 2
        assert found["environment"]["OMP_NUM_THREADS"] == "2"


def test_code_that_reads_the_environment_finds_a_group_or_makes_one(findings: Findings) -> None:
    for found in findings:
        assert found["third_party"] == {"found": True, "ours": 3.0, "theirs": 3.0}


def test_ddp_is_training_on_the_whole_batch(findings: Findings) -> None:
    for found in findings:
        parallel = found["parallel"]
        assert parallel["ddp_type"] == "DistributedDataParallel"
        assert parallel["ddp"] == findings[0]["parallel"]["ddp"], "equal on all ranks, bit by bit"
        _assert_close(parallel["ddp"], parallel["single"])


def test_fsdp_is_ddp_with_shards(findings: Findings) -> None:
    for found in findings:
        parallel = found["parallel"]
        _assert_close(parallel["fsdp"], findings[0]["parallel"]["ddp"])
        # The two layers of the list and the root; embed and unembed share a parameter.
        assert parallel["fsdp_units"] == ["FSDPNet", "FSDPLinear", "FSDPLinear"]
        assert parallel["fsdp_parameters"] == len(parallel["fsdp_shares"]) == 6
    in_shards = [sum(found["parallel"]["fsdp_shares"]) for found in findings]
    assert sum(in_shards) == 24 + 2 * (64 + 8) + 3
    assert max(in_shards) < sum(in_shards) * 0.6


def test_without_a_strategy_a_model_is_only_moved(findings: Findings) -> None:
    assert [found["parallel"]["only_moved"] for found in findings] == ["Net", "Net"]


def test_ranks_share_the_data_out_without_gaps_and_without_doubles(findings: Findings) -> None:
    loading = [found["loading"] for found in findings]
    everything = list(range(NUM_SAMPLES))
    for epoch in range(3):
        assert sorted(loading[0]["shuffled"][epoch] + loading[1]["shuffled"][epoch]) == everything
    for what in ("plain", "unbatched"):
        assert [loaded[what] for loaded in loading] == [everything[::2], everything[1::2]]
    assert [loaded["drop_last"] for loaded in loading] == [[0, 2, 4], [1, 3, 5]]
    assert [loaded["length"] for loaded in loading] == [3, 3]
    assert all(loaded["is_loader"] and loaded["sampler_type"] for loaded in loading)


def test_the_shuffle_changes_with_the_epoch_and_comes_back_with_set_epoch(
    findings: Findings,
) -> None:
    for found in findings:
        loading = found["loading"]
        first, second, third = loading["shuffled"]
        assert first != second
        assert second != third
        assert loading["set_epoch"] == third
        assert loading["sampler.set_epoch"] == second


def test_what_other_samplers_draw_is_shared_out_too(findings: Findings) -> None:
    loading = [found["loading"] for found in findings]
    drawn = [loaded["weighted"] for loaded in loading]
    assert {len(share) for share in (*drawn[0], *drawn[1])} == {NUM_SAMPLES // 2}
    assert {index for share in (*drawn[0], *drawn[1]) for index in share} <= {0, 1, 2}
    assert drawn[0][0] != drawn[0][1], "another epoch"
    assert all(loaded["rng_kept"] for loaded in loading)
    # Five batches for two ranks: the first one comes twice.
    batches = [loaded["batched"] for loaded in loading]
    assert [len(share) for share in batches] == [3, 3]
    assert batches[1][2] == batches[0][0]
    indices = [index for batch in (*batches[0], *batches[1][:2]) for index in batch]
    assert sorted(indices) == list(range(NUM_SAMPLES))


def test_loaders_that_need_no_sampler_are_left_as_they_are(findings: Findings) -> None:
    for rank, found in enumerate(findings):
        loading = found["loading"]
        assert loading["own"]
        assert loading["sequential"]
        assert loading["bare"] == list(range(NUM_SAMPLES))
        assert loading["iterable"] == [0, 1, 2]
        assert loading["forked"] == [list(range(rank, NUM_SAMPLES, 2))] * 2
        assert loading["forked_settings"] == [1, True, 3, True]


def _assert_close(state: dict[str, Any], expected: dict[str, Any]) -> None:
    import torch

    assert state.keys() == expected.keys()
    for name, values in state.items():
        difference = (torch.tensor(values) - torch.tensor(expected[name])).abs().max().item()
        assert difference < 1e-6, name
