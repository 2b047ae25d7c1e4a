"""What ranks save together, of DDP, FSDP2 and other meshes, is what safetensors and torch read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from hpctrain.bulk.index import INDEX_NAME, StateIndex
from hpctrain.torch import TorchConfig, TorchTrainer, load_state
from hpctrain.torch.state.state_dict.json_values import decode
from tests import runs

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

RANKS = 4
SAVED_BY_US = ("ddp", "fsdp", "hybrid", "tensor parallel", "some ranks", "by torch")
BY_PLUG_IN = ("plug-in", "plug-in and planner")
KINDS = SAVED_BY_US + BY_PLUG_IN


def _training(directory: str) -> Callable[[], None]:
    """Return the training function; what it needs is inside, so that it travels by value."""

    def train() -> None:
        import pathlib
        from typing import Any

        import torch
        import torch.distributed.checkpoint as dcp
        from torch import nn
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

        import hpctrain
        import hpctrain.torch
        from hpctrain.torch.state.ranks import GroupComm
        from hpctrain.torch.state.save import write_state
        from hpctrain.torch.state.state_dict.flatten import flatten_state

        rank = hpctrain.get_context().get_world_rank()

        def model() -> Any:
            torch.manual_seed(0)
            # Rows that four ranks cannot share evenly, and fewer rows than ranks.
            return nn.Sequential(nn.Linear(64, 4099), nn.BatchNorm1d(4099), nn.Linear(4099, 3))

        def stepped(wrapped: Any, *, seed: int = rank) -> Any:
            optimizer = torch.optim.AdamW(wrapped.parameters())
            torch.manual_seed(seed)
            wrapped(torch.randn(4, 64)).square().sum().backward()
            optimizer.step()
            return optimizer

        def keep_expected(kind: str, tensors: Any) -> None:
            whole = {
                name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                for name, tensor in tensors.items()
            }
            if rank == 0:
                torch.save(whole, f"{directory}/{kind}.pt")

        def save(kind: str, wrapped: Any, **others: Any) -> None:
            optimizer = stepped(wrapped)
            path = f"{directory}/{kind}"
            hpctrain.torch.save_state(path, model=wrapped, optimizer=optimizer, **others)
            state = flatten_state(model=wrapped, optimizer=optimizer, others=others)
            keep_expected(kind, state.tensors)

        ddp: Any = hpctrain.torch.prepare_model(model().eval())
        save("ddp", ddp, ema=dict(ddp.module.state_dict()))

        for kind, mesh in (
            ("fsdp", init_device_mesh("cpu", (4,))),
            ("hybrid", init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))),
        ):
            sharded = model().eval()
            for layer in (sharded[0], sharded[2], sharded):
                fully_shard(layer, mesh=mesh)
            save(kind, sharded)

        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (2, 2))
        whole = torch.randn(1000, 37, 3)
        grid = {
            "columns": distribute_tensor(whole, mesh, [Shard(1), Shard(2)]),
            "rows": distribute_tensor(whole, mesh, [Shard(0), Replicate()]),
            "twice": distribute_tensor(whole, mesh, [Shard(0), Shard(0)]),
            "everywhere": distribute_tensor(whole, mesh, [Replicate(), Replicate()]),
        }
        hpctrain.torch.save_state(f"{directory}/tensor parallel", x=grid)
        keep_expected("tensor parallel", {f"x.{name}": t for name, t in grid.items()})

        two = DeviceMesh("cpu", [1, 3])
        part = distribute_tensor(whole, two, [Shard(0)])
        hpctrain.torch.save_state(f"{directory}/some ranks", x={"w": part, "scale": whole[0]})
        keep_expected("some ranks", {"x.w": whole, "x.scale": whole[0]})
        live = {
            "w": distribute_tensor(torch.zeros_like(whole), two, [Shard(0)]),
            "scale": torch.zeros_like(whole[0]),
        }
        hpctrain.torch.load_state(f"{directory}/some ranks", x=live)
        torch.save(
            {"w": live["w"].to_local(), "saved": part.to_local(), "scale": live["scale"]},
            f"{directory}/some ranks, {rank}.pt",
        )

        write_state(
            pathlib.Path(directory, "by torch"),
            flatten_state(others={"x": grid}),
            ranks=GroupComm(),
        )
        keep_expected("by torch", {f"x.{name}": t for name, t in grid.items()})

        plain = model().eval()
        state = {
            "model": plain.state_dict(),
            "optimizer": get_optimizer_state_dict(plain, stepped(plain, seed=7)),
            "grid": grid,
        }
        planners = {"plug-in": None, "plug-in and planner": hpctrain.torch.StatePlanner()}
        for kind, planner in planners.items():
            writer = hpctrain.torch.StateWriter(f"{directory}/{kind}")
            told = {**state, "part": part, "seen": {"batches": [1, (2, 3)]}}
            dcp.save(told, storage_writer=writer, planner=planner)
            keep_expected(kind, {**flatten_state(others=state).tensors, "part": whole})
        dcp.save(state, checkpoint_id=f"{directory}/planner", planner=hpctrain.torch.StatePlanner())

    return train


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    saved = tmp_path_factory.mktemp("saved")
    runs.fit(
        _training(str(saved)),
        saved / "runs",
        num_workers=RANKS,
        trainer=TorchTrainer,
        torch_config=TorchConfig(backend="gloo"),
    )
    return saved


def test_ranks_that_have_no_part_of_a_tensor_load_the_others(directory: Path) -> None:
    loaded = [torch.load(directory / f"some ranks, {rank}.pt") for rank in range(RANKS)]
    assert [part["w"].numel() > 0 for part in loaded] == [False, True, False, True]
    expected = torch.load(directory / "some ranks.pt")
    for part in loaded:
        assert torch.equal(part["w"], part["saved"])
        assert torch.equal(part["scale"], expected["x.scale"])


@pytest.mark.parametrize("kind", KINDS)
def test_torch_reads_what_ranks_saved_bit_for_bit(directory: Path, kind: str) -> None:
    expected = torch.load(directory / f"{kind}.pt")
    aliases = _index(directory, kind).aliases
    loaded = {
        name: torch.full_like(value, 7) for name, value in expected.items() if name not in aliases
    }
    reader = dcp.HuggingFaceStorageReader(str(directory / kind))
    dcp.load(loaded, storage_reader=reader, no_dist=True)
    for name, value in loaded.items():
        assert torch.equal(value, expected[name]), name
    # A copy that is none: these have the model's memory.
    assert aliases == {name: f"model{name[3:]}" for name in expected if name.startswith("ema.")}


@pytest.mark.parametrize("kind", KINDS)
def test_each_byte_is_written_once(directory: Path, kind: str) -> None:
    index, expected = _index(directory, kind), torch.load(directory / f"{kind}.pt")
    written = [file.layout.data_bytes for file in index.files]
    assert len(written) == RANKS
    assert sum(written) == sum(
        value.numel() * value.element_size()
        for name, value in expected.items()
        if name not in index.aliases
    )


def test_what_is_replicated_is_written_by_all_ranks_equally(directory: Path) -> None:
    for kind in ("ddp", "hybrid", "tensor parallel", "plug-in and planner"):
        written = [file.layout.data_bytes for file in _index(directory, kind).files]
        # Buffers are rank 0's, so that they do not even out shards of uneven size.
        most = 1.03 if kind == "hybrid" else 1.02
        assert max(written) <= most * sum(written) / len(written), kind


def test_a_sharded_model_is_written_by_those_who_hold_it(directory: Path) -> None:
    for rank, file in enumerate(_index(directory, "fsdp").files):
        chunks = {chunk.name: chunk for chunk in file.layout.chunks}
        assert chunks["model.0.weight"].offsets == (1025 * rank, 0)


def _index(directory: Path, kind: str) -> StateIndex:
    return StateIndex.decode((directory / kind / INDEX_NAME).read_bytes(), name=INDEX_NAME)


@pytest.mark.parametrize("kind", BY_PLUG_IN)
def test_what_the_plug_in_saved_of_values_is_named_as_save_state_does(
    directory: Path, kind: str
) -> None:
    values = {name: decode(value) for name, value in _index(directory, kind).values.items()}
    assert values["seen"] == {"batches": [1, (2, 3)]}
    assert values["optimizer.param_groups"][0]["betas"] == (0.9, 0.999)
    assert values["optimizer.param_groups"][0]["params"][0] == "0.weight"
    assert set(values) == {"seen", "optimizer.param_groups"}


def test_what_the_plug_in_saved_is_loaded_into_a_model_and_its_optimizer(directory: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 4099), torch.nn.BatchNorm1d(4099), torch.nn.Linear(4099, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=7)
    load_state(directory / "plug-in", model=model, optimizer=optimizer)
    expected = torch.load(directory / "plug-in.pt")
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[f"model.{name}"]), name
    assert optimizer.param_groups[0]["lr"] == 0.001
    momentum = optimizer.state[next(model.parameters())]["exp_avg"]
    assert torch.equal(momentum, expected["optimizer.state.0.weight.exp_avg"])


def test_torch_reads_what_its_own_writer_saved_with_our_planner(directory: Path) -> None:
    expected = torch.load(directory / "plug-in.pt")
    loaded = {name: torch.zeros_like(value) for name, value in expected.items() if name != "part"}
    dcp.load(loaded, checkpoint_id=directory / "planner", no_dist=True)
    for name, value in loaded.items():
        assert torch.equal(value, expected[name]), name
    sizes = [path.stat().st_size for path in (directory / "planner").glob("*.distcp")]
    assert len(sizes) == RANKS
    # What pickles besides is the same on all ranks, but for the number of tensors.
    assert max(sizes) <= 1.05 * sum(sizes) / RANKS
