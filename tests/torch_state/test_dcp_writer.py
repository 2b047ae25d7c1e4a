"""torch.distributed.checkpoint with our writer: what it takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from hpctrain.bulk.index import INDEX_NAME, StateIndex
from hpctrain.torch import StatePlanner, StateWriter
from hpctrain.torch.state.state_dict.json_values import decode

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def _state() -> dict[str, Any]:
    return {
        "x": {"weight": torch.randn(300, 70), "none": torch.zeros(0, 3), "step": torch.tensor(7)},
        "list": [torch.ones(3), {"rate": 0.1}],
        "epoch": 3,
    }


@pytest.mark.parametrize("planner", [None, StatePlanner(), StatePlanner(flatten_state_dict=False)])
def test_a_state_is_saved_and_torch_loads_it(tmp_path: Path, planner: StatePlanner | None) -> None:
    state = _state() if planner is None or planner.flatten_state_dict else _state()["x"]
    dcp.save(state, storage_writer=StateWriter(tmp_path), planner=planner)
    tensors = state.get("x", state)
    loaded = {name: torch.full_like(tensor, 9) for name, tensor in tensors.items()}
    reader = dcp.HuggingFaceStorageReader(str(tmp_path))
    dcp.load({"x": loaded} if "x" in state else loaded, storage_reader=reader)
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor), name


def test_values_keep_their_place(tmp_path: Path) -> None:
    dcp.save(_state(), checkpoint_id=tmp_path, storage_writer=StateWriter())
    values = StateIndex.decode((tmp_path / INDEX_NAME).read_bytes(), name=INDEX_NAME).values
    assert {name: decode(value) for name, value in values.items()} == {
        "list.1": {"rate": 0.1},
        "epoch": 3,
    }


def test_an_async_save_is_written_too(tmp_path: Path) -> None:
    saving: Any = dcp.async_save(_state(), storage_writer=StateWriter(tmp_path), no_dist=True)
    saving.result(timeout=60)
    assert (tmp_path / INDEX_NAME).exists()


def test_a_directory_that_holds_a_state_is_not_overwritten(tmp_path: Path) -> None:
    dcp.save(_state(), storage_writer=StateWriter(tmp_path))
    before = (tmp_path / INDEX_NAME).read_bytes()
    with pytest.raises(CheckpointException, match="holds a state already"):
        dcp.save({"x": torch.zeros(1)}, storage_writer=StateWriter(tmp_path))
    assert (tmp_path / INDEX_NAME).read_bytes() == before


def test_what_would_have_to_be_pickled_is_refused_by_name(tmp_path: Path) -> None:
    state = {"x": torch.zeros(3), "path": Path("a")}
    with pytest.raises(CheckpointException, match=r"path is a pathlib\.\w*PosixPath, which is"):
        dcp.save(state, storage_writer=StateWriter(tmp_path))
    assert not (tmp_path / INDEX_NAME).exists()


def test_a_writer_without_a_directory_says_so() -> None:
    with pytest.raises(CheckpointException, match="StateWriter has no directory"):
        dcp.save({"x": torch.zeros(3)}, storage_writer=StateWriter())
