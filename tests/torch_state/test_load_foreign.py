"""What other programs wrote is loaded, and torch loads what we wrote."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from hpctrain.errors import CheckpointError
from hpctrain.testing.thread_comm import run_on_threads
from hpctrain.torch import StateReader, StateWriter, load_state, save_state
from hpctrain.torch.state.save import write_state
from hpctrain.torch.state.state_dict.flatten import flatten_state

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def _trained(seed: int, steps: int = 1) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 1000), nn.BatchNorm1d(1000), nn.Linear(1000, 2500))
    optimizer = torch.optim.AdamW(model.parameters(), lr=seed / 8)
    for _ in range(steps):
        model(torch.randn(4, 20)).sum().backward()
        optimizer.step()
    return model, optimizer


def _assert_same(one: Any, other: Any) -> None:
    expected = flatten_state(model=one[0], optimizer=one[1])
    found = flatten_state(model=other[0], optimizer=other[1])
    assert set(found.tensors) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name
    assert found.values == expected.values


def _state_dict(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}


@pytest.mark.parametrize("steps", [0, 1])
def test_what_torch_wrote_is_loaded(tmp_path: Path, steps: int) -> None:
    saved, live = _trained(1), _trained(2, steps)
    content = {**_state_dict(*saved), "progress": {"epoch": 3, "names": ["a"]}}
    dcp.save(content, storage_writer=dcp.FileSystemWriter(tmp_path / "s"))
    progress: dict[str, Any] = {"epoch": 0, "names": []}
    load_state(tmp_path / "s", model=live[0], optimizer=live[1], progress=progress)
    _assert_same(saved, live)
    assert progress == {"epoch": 3, "names": ["a"]}


def test_a_file_of_torch_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return print, ("ran",)

    saved = _trained(1)
    dcp.save({"model": saved[0].state_dict()}, storage_writer=dcp.FileSystemWriter(tmp_path / "s"))
    (tmp_path / "s" / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=r"would run code: it asks for builtins.print"):
        load_state(tmp_path / "s", model=saved[0])


def test_what_torch_wrote_as_safetensors_is_loaded(tmp_path: Path) -> None:
    saved, live = _trained(1), _trained(2)
    content = {f"model.{name}": value for name, value in saved[0].state_dict().items()}
    dcp.save(content, storage_writer=dcp.HuggingFaceStorageWriter(str(tmp_path / "s")))
    load_state(tmp_path / "s", model=live[0])
    _assert_same((saved[0], None), (live[0], None))


def test_files_of_safetensors_are_loaded_by_the_names_of_the_model(tmp_path: Path) -> None:
    saved, live = _trained(1), _trained(2)
    tensors = saved[0].state_dict()
    first = {name: tensors.pop(name) for name in list(tensors)[:2]}
    save_file(first, tmp_path / "model-1.safetensors")
    save_file(tensors, tmp_path / "model-2.safetensors")
    load_state(tmp_path, model=live[0])
    _assert_same((saved[0], None), (live[0], None))


def test_a_directory_without_a_state_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    model, _ = _trained(1)
    with pytest.raises(CheckpointError, match="holds no state"):
        load_state(tmp_path, model=model)
    with pytest.raises(CheckpointError, match="is no directory"):
        load_state(tmp_path / "none", model=model)
    (tmp_path / "plan.json").touch()
    with pytest.raises(CheckpointError, match=r"of a run\. .* Result\.from_path\('.*\.checkpoint"):
        load_state(tmp_path, model=model)


def test_torch_loads_what_we_wrote_through_our_reader(tmp_path: Path) -> None:
    saved, live = _trained(1), _trained(2)
    state = flatten_state(model=saved[0], optimizer=saved[1], others={"progress": {"epoch": 3}})
    run_on_threads(3, lambda comm: write_state(tmp_path / "s", state, ranks=comm))
    content = {**_state_dict(*live), "progress": {"epoch": 0}}
    dcp.load(content, storage_reader=StateReader(tmp_path / "s"))
    assert content["progress"] == {"epoch": 3}
    group = content["optimizer"]["param_groups"][0]
    assert (group["lr"], group["betas"]) == (1 / 8, (0.9, 0.999))
    live[1].param_groups[0]["lr"] = 1 / 8
    _assert_same(saved, live)


def test_what_torch_wrote_through_our_writer_comes_back_both_ways(tmp_path: Path) -> None:
    saved, live, other = _trained(1), _trained(2), _trained(3, 0)
    content = {**_state_dict(*saved), "progress": {"epoch": 3, "names": ["a"]}}
    dcp.save(content, storage_writer=StateWriter(tmp_path / "s"))
    found = {**_state_dict(*live), "progress": {"epoch": 0, "names": []}}
    dcp.load(found, storage_reader=StateReader(tmp_path / "s"))
    assert found["progress"] == {"epoch": 3, "names": ["a"]}
    live[1].load_state_dict(_by_number(found["optimizer"]))
    _assert_same(saved, live)
    load_state(tmp_path / "s", model=other[0], optimizer=other[1])
    _assert_same(saved, other)


def _by_number(state: Any) -> Any:
    """Return the state of an optimizer with numbers for parameters, as the optimizer has it."""
    names = [name for group in state["param_groups"] for name in group["params"]]
    return {
        "state": {names.index(name): entry for name, entry in state["state"].items()},
        "param_groups": [
            {**group, "params": [names.index(name) for name in group["params"]]}
            for group in state["param_groups"]
        ],
    }


RARE = {
    "pairs": torch.randn(70, 30, dtype=torch.complex128),
    "pair": torch.tensor(1 - 2j, dtype=torch.complex128),
    "turned": torch.randn(7, 9, dtype=torch.complex128).t(),
    "fnuz": torch.randn(5, 9).to(torch.float8_e4m3fnuz),
    "powers": torch.tensor([1.0, 2.0, 4.0]).to(torch.float8_e8m0fnu),
}


@pytest.mark.parametrize("by", ["save_state on three ranks", "our writer"])
def test_our_reader_gives_torch_types_that_safetensors_lacks(tmp_path: Path, by: str) -> None:
    if by == "our writer":
        dcp.save({"x": RARE}, storage_writer=StateWriter(tmp_path / "s"))
    else:
        state = flatten_state(others={"x": RARE})
        run_on_threads(3, lambda comm: write_state(tmp_path / "s", state, ranks=comm))
    metadata = StateReader(tmp_path / "s").read_metadata().state_dict_metadata
    for name, tensor in RARE.items():
        found: Any = metadata[f"x.{name}"]
        assert (found.properties.dtype, found.size) == (tensor.dtype, tensor.shape)
        assert sum(chunk.sizes.numel() for chunk in found.chunks) == tensor.numel()
    loaded = {name: torch.ones(tensor.shape).to(tensor.dtype) for name, tensor in RARE.items()}
    dcp.load({"x": loaded}, storage_reader=StateReader(tmp_path / "s"))
    for name, tensor in RARE.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].tolist() == tensor.tolist(), name
    load_state(tmp_path / "s", x={name: tensor.clone() for name, tensor in RARE.items()})


def test_our_reader_reads_such_types_into_conjugated_tensors_and_into_other_types(
    tmp_path: Path,
) -> None:
    dcp.save({"x": RARE}, storage_writer=StateWriter(tmp_path / "s"))
    pairs = RARE["pairs"]
    loaded = {"pairs": torch.zeros_like(pairs).conj(), "powers": torch.zeros(3)}
    dcp.load({"x": loaded}, storage_reader=StateReader(tmp_path / "s"))
    assert torch.equal(loaded["pairs"], pairs)
    assert loaded["powers"].tolist() == [1, 2, 4]


def test_our_reader_tells_torch_of_damage(tmp_path: Path) -> None:
    saved = _trained(1)
    save_state(tmp_path / "s", model=saved[0])
    (path,) = (tmp_path / "s").glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BaseException, match="is damaged: block 1 of 2"):
        dcp.load({"model": saved[0].state_dict()}, storage_reader=StateReader(tmp_path / "s"))


def test_a_reader_that_is_used_again_reads_the_other_directory(tmp_path: Path) -> None:
    a, b = torch.full((3,), 1.0), torch.full((3,), 2.0)
    dcp.save({"a": a, "b": b, "old": 3}, storage_writer=StateWriter(tmp_path / "first"))
    dcp.save({"b": b, "a": a}, storage_writer=StateWriter(tmp_path / "second"))
    reader = StateReader()
    for name in ("first", "second"):
        found = {"a": torch.zeros(3), "b": torch.zeros(3)}
        dcp.load(found, storage_reader=reader, checkpoint_id=tmp_path / name)
        assert torch.equal(found["a"], a)
        assert torch.equal(found["b"], b)
    assert "old" not in reader.read_metadata().state_dict_metadata
