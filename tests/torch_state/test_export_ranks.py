"""What two real ranks saved of sharded models is exported as whole tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from hpctrain.checkpoint import Checkpoint
from hpctrain.torch import TorchTrainer, export_state
from tests.runs import fit

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]


def _train(config: dict[str, Any]) -> None:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    import hpctrain
    import hpctrain.torch

    torch.manual_seed(1)
    ranks = hpctrain.get_context().get_world_size()
    model: Any = nn.Sequential(nn.Linear(65, 3001), nn.BatchNorm1d(3001), nn.Linear(3001, 2500))
    model.register_buffer("narrow", torch.randn(5, 7).bfloat16())
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if config["kind"] == "fsdp":
        for layer in (model[0], model[2], model):
            fully_shard(layer)
    else:
        mesh = init_device_mesh("cpu", (ranks,))
        # The rows of the first are shorter than a page, those of the second are not.
        for layer in (model[0], model[2]):
            weight = distribute_tensor(layer.weight.detach(), mesh, [Shard(1)])
            layer.weight = nn.Parameter(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    if hpctrain.get_context().get_world_rank() == 0:
        torch.save(whole, config["expected"])
    hpctrain.torch.report_state({}, model=model, optimizer=optimizer)


@pytest.mark.parametrize("kind", ["fsdp", "columns"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_shards_become_whole_tensors(tmp_path: Path, kind: str, ranks: int) -> None:
    expected_path = str(tmp_path / "expected.pt")
    result = fit(
        _train,
        tmp_path,
        num_workers=ranks,
        trainer=TorchTrainer,
        train_loop_config={"kind": kind, "expected": expected_path},
    )
    assert isinstance(result.checkpoint, Checkpoint)
    assert len(list(result.checkpoint.path.glob("state-*.safetensors"))) == ranks
    expected = torch.load(expected_path, weights_only=True)
    live = {name: torch.full_like(tensor, 2) for name, tensor in expected.items()}
    for format in ("safetensors", "torch", "dcp"):
        done = export_state(result.checkpoint, tmp_path / format, format=format)  # type: ignore[arg-type]
        assert done.is_verified
        assert done.other_parts == ("optimizer",)
    dcp.load(live, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for found in (
        load_file(tmp_path / "safetensors" / "model.safetensors"),
        torch.load(tmp_path / "torch", weights_only=True),
        live,
    ):
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor), name
