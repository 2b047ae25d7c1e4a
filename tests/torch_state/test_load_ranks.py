"""A state of any ranks is loaded by any others, into DDP and FSDP2 models, each byte read once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.torch import TorchConfig, TorchTrainer
from tests.runs import fit

pytestmark = pytest.mark.mpi

Findings = dict[str, Any]


def _training(
    directory: str, load: dict[str, list[str]], save: list[str]
) -> Callable[[], list[Findings]]:
    """Return a training function; what it needs is inside, so that it travels by value.

    Parameters
    ----------
    load
        For each kind of model the names of the states that it loads.
    save
        Kinds of models to be saved afterwards, under their name and the number of ranks: of FSDP2,
        if no other one, and as ``named`` with the optimizer under a name of its own.
    """

    def train() -> list[Findings]:
        import pathlib

        import torch
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor

        import hpctrain
        import hpctrain.torch
        from hpctrain.torch.state.load import load_into
        from hpctrain.torch.state.ranks import GroupComm, communicator

        ranks = hpctrain.get_context().get_world_size()

        def make(kind: str, seed: int) -> tuple[Any, Any]:
            torch.manual_seed(seed)
            model: Any = nn.Sequential(nn.Linear(64, 20_011), nn.BatchNorm1d(20_011))
            model.append(nn.Linear(20_011, 3))
            if kind == "ddp":
                model = nn.parallel.DistributedDataParallel(model)
            elif kind == "columns":
                mesh = init_device_mesh("cpu", (ranks,))
                for layer in (model[0], model[2]):
                    weight = distribute_tensor(layer.weight.detach(), mesh, [Shard(1)])
                    layer.weight = nn.Parameter(weight)
            else:
                for layer in (model[0], model[2], model):
                    fully_shard(layer)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1 / seed, foreach=False)
            if kind != "columns":
                model.eval()
                model(torch.randn(4, 64)).square().sum().backward()
            else:
                for parameter in model.parameters():
                    parameter.grad = parameter.detach().clone()
            if seed == 1:
                optimizer.step()
            optimizer.zero_grad()
            return model, optimizer

        def digest(model: Any, optimizer: Any) -> dict[str, float]:
            """Return a number for each tensor, which no other content has."""
            plain = getattr(model, "module", model)
            tensors = dict(plain.state_dict())
            for name, parameter in plain.named_parameters():
                for key, value in optimizer.state[parameter].items():
                    tensors[f"{name} {key}"] = value
            sums = {}
            for name, tensor in tensors.items():
                whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                flat = whole.detach().double().reshape(-1)
                sums[name] = float((flat * torch.arange(1, flat.numel() + 1)).sum())
            return {**sums, "lr": optimizer.param_groups[0]["lr"]}

        def state_of(name: str, model: Any, optimizer: Any) -> Any:
            if name.startswith("named"):
                others = {"disc": model, "disc_opt": optimizer}
                return {"model": None, "optimizer": None, "others": others}
            return {"model": model, "optimizer": optimizer, "others": {}}

        def is_sharded_alike(optimizer: Any) -> bool:
            return all(
                type(own["exp_avg"]) is type(parameter.data)
                for parameter, own in optimizer.state.items()
            )

        findings: list[Findings] = []
        comms: tuple[Any, ...] = (communicator(), GroupComm())
        for kind, names in load.items():
            for name in names:
                comm = comms[len(findings) % 2]
                model, optimizer = make(kind, 2)
                path = pathlib.Path(directory, name)
                if kind == "fsdp":
                    # Without a backward pass FSDP2 leaves the parameters of the root whole.
                    with torch.no_grad():
                        model.eval()(torch.randn(4, 64))
                state = state_of(name, model, optimizer)
                loaded = load_into(path, **state, ranks=comm, timeout_s=60)
                findings.append(
                    {
                        "kind": kind,
                        "name": name,
                        "by": type(comm).__name__,
                        "digest": digest(model, optimizer),
                        "sharded alike": is_sharded_alike(optimizer),
                        "read": loaded.bytes_read,
                        "size": sum(f.stat().st_size for f in path.glob("*.safetensors")),
                    }
                )
        for kind in save:
            model, optimizer = make(kind, 1)
            state = state_of(kind, model, optimizer)
            others = state.pop("others")
            hpctrain.torch.save_state(f"{directory}/{kind}-{ranks}", **state, **others)
            findings.append({"kind": kind, "digest": digest(model, optimizer)})
        return findings

    return train


def _run(
    directory: Path, ranks: int, *, load: dict[str, list[str]], save: list[str]
) -> list[Findings]:
    result = fit(
        _training(str(directory), load, save),
        directory / "runs",
        trainer=TorchTrainer,
        torch_config=TorchConfig(backend="gloo"),
        num_workers=ranks,
        name=f"on-{ranks}",
    )
    findings: list[Findings] = result.return_value
    return findings


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """Return what was saved on four ranks, and what was loaded on two, then on three."""
    directory = tmp_path_factory.mktemp("ranks")
    saved = _run(directory, 4, load={}, save=["ddp", "fsdp", "columns", "named"])
    of_four = ["ddp-4", "fsdp-4", "columns-4", "named-4"]
    on_two = _run(directory, 2, load={"ddp": of_four, "fsdp": of_four}, save=["fsdp"])
    on_three = _run(
        directory, 3, load={"ddp": ["fsdp-2"], "columns": ["fsdp-2", "columns-4"]}, save=[]
    )
    return [*saved, *on_two, *on_three]


def _digest_of(findings: list[Findings], name: str) -> Any:
    kind, ranks = name.rsplit("-", 1)
    saved = [found["digest"] for found in findings if found["kind"] == kind and "name" not in found]
    return saved[0 if ranks == "4" else 1]


def test_any_ranks_and_any_sharding_get_back_what_was_saved(findings: list[Findings]) -> None:
    loaded = [found for found in findings if "name" in found]
    assert len(loaded) == 11
    for found in loaded:
        assert found["digest"] == _digest_of(findings, found["name"]), found
        assert found["sharded alike"], found
    assert {found["by"] for found in loaded} == {"Intracomm", "GroupComm"}


def test_each_byte_of_a_state_is_read_once_by_all_ranks_together(findings: list[Findings]) -> None:
    for found in findings:
        if "name" in found:
            assert found["read"] == found["size"], found


def _loading_what_is_damaged(directory: str) -> Callable[[], list[list[str]]]:
    """Return what each rank found: after each damage, and then of the sound state."""

    def train() -> list[list[str]]:
        import pathlib

        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor

        import hpctrain
        import hpctrain.torch
        from hpctrain.errors import CheckpointError
        from hpctrain.torch.state.ranks import communicator

        context = hpctrain.get_context()
        comm = communicator()
        mesh = init_device_mesh("cpu", (context.get_world_size(),))

        def sharded(value: torch.Tensor) -> DTensor:
            return distribute_tensor(value, mesh, [Shard(0)])

        saved = torch.arange(700.0).reshape(70, 10)
        path = pathlib.Path(directory, "s")
        hpctrain.torch.save_state(path, x={"w": sharded(saved), "b": torch.ones(3)})

        def attempt(**live: torch.Tensor) -> str:
            before = {name: tensor.clone() for name, tensor in live.items()}
            try:
                hpctrain.torch.load_state(path, x=live)
            except CheckpointError as error:
                if not all(torch.equal(live[name], its) for name, its in before.items()):
                    return "changed"
                return str(error).replace(directory, "D")
            return ""

        def damaged(name: str, content: bytes) -> str:
            file = path / name
            sound = file.read_bytes()
            comm.barrier()
            if comm.rank == 1:
                file.write_bytes(content)
            comm.barrier()
            error = attempt(w=sharded(torch.zeros(70, 10)), b=torch.zeros(3))
            comm.barrier()
            if comm.rank == 1:
                file.write_bytes(sound)
            comm.barrier()
            return error

        # What the second rank wrote is called another tensor.
        head, first, second, third = (path / "state.json").read_bytes().split(b'["x.w"')
        renamed = b'%s["x.w"%s["x.v"%s["x.w"%s' % (head, first, second, third)
        live = {"w": sharded(torch.zeros(70, 10)), "b": torch.zeros(3)}
        found = [
            damaged("state-00002-of-00003.safetensors", b"torn"),
            damaged("state.json", b"{"),
            damaged("state.json", renamed),
            attempt(w=sharded(torch.zeros(71, 10)), b=torch.zeros(3)),
            attempt(**live),
            str(torch.equal(live["w"].full_tensor(), saved)),
        ]
        return comm.allgather(found)

    return train


def test_all_ranks_raise_the_same_and_load_afterwards(tmp_path: Path) -> None:
    result = fit(
        _loading_what_is_damaged(str(tmp_path)),
        tmp_path / "runs",
        trainer=TorchTrainer,
        torch_config=TorchConfig(backend="gloo"),
        num_workers=3,
    )
    found: list[list[str]] = result.return_value
    assert found[1:] == found[:1] * 2
    header, index, missing, shape, *loaded = found[0]
    file = "D/s/state-00002-of-00003.safetensors"
    untouched = "Nothing was changed."
    assert header == (
        f"{file} is damaged: its header is torn. Load another checkpoint. {untouched} "
        f"(rank 1; 1 of 3)"
    )
    assert index == f"D/s/state.json is damaged: it is torn. Load another checkpoint. {untouched}"
    assert missing == (
        f"D/s has 0 of the 240 elements of x.w that this rank holds: a file of it is missing. "
        f"Load another checkpoint. {untouched} (rank 1; 1 of 3)"
    )
    assert shape.startswith("x.w of shape [70, 10] is not there yet, and beside DTensors only")
    assert shape.endswith(f"{untouched} (rank 0; 3 of 3)")
    assert loaded == ["", "True"]
