"""Saving a state: what is in the files, who wrote it, and what is refused."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from hpctrain.bulk.index import INDEX_NAME, StateIndex
from hpctrain.bulk.state_file import BLOCK_BYTES
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads
from hpctrain.torch.state import save as saving
from hpctrain.torch.state.layout.save_plan import SavePlan, plan_save
from hpctrain.torch.state.save import save_state, write_state
from hpctrain.torch.state.state_dict.flatten import flatten_state
from hpctrain.torch.state.state_dict.json_values import decode
from hpctrain.world import SerialComm


def _read(directory: Path) -> tuple[StateIndex, dict[str, torch.Tensor]]:
    """Return the index, and all tensors, put together by safetensors alone."""
    index = StateIndex.decode((directory / INDEX_NAME).read_bytes(), name=INDEX_NAME)
    tensors: dict[str, torch.Tensor] = {}
    for file in index.files:
        with safe_open(directory / file.name, framework="pt") as opened:
            for chunk in file.layout.chunks:
                content = opened.get_tensor(chunk.name)
                assert tuple(content.shape) == chunk.shape
                shape = index.shapes[chunk.name]
                whole = tensors.setdefault(chunk.name, torch.empty(shape, dtype=content.dtype))
                shard = tuple(
                    slice(start, start + size)
                    for start, size in zip(chunk.offsets, chunk.shape, strict=True)
                )
                whole[shard] = content
    assert set(tensors) == set(index.shapes)
    return index, tensors


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 50), nn.BatchNorm1d(50), nn.Linear(50, 70000))


def _trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 30)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_model_and_its_optimizer_are_saved_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = _trained()
    save_state(tmp_path / "s", model=model, optimizer=optimizer)
    index, tensors = _read(tmp_path / "s")
    expected = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            expected[f"optimizer.state.{name}.{key}"] = value
    assert set(expected) == set(tensors)
    for name, value in expected.items():
        assert torch.equal(value, tensors[name]), name
    (group,) = decode(index.values["optimizer.param_groups"])
    assert group["betas"] == (0.9, 0.999)
    assert group["params"] == [name for name, _ in model.named_parameters()]
    assert sum(file.layout.data_bytes for file in index.files) > 2 * BLOCK_BYTES


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_that_have_the_same_write_each_byte_once_and_equally_many(
    tmp_path: Path, ranks: int
) -> None:
    model, optimizer = _trained()
    state = flatten_state(model=model, optimizer=optimizer)

    def save(comm: ThreadComm) -> None:
        for name in ("first", "second"):
            write_state(tmp_path / name, state, ranks=comm)

    run_on_threads(ranks, save)
    for name in ("first", "second"):
        index, tensors = _read(tmp_path / name)
        for key, value in state.tensors.items():
            assert torch.equal(_bits(value), _bits(tensors[key])), key
        written = [file.layout.data_bytes for file in index.files]
        assert len(written) == ranks
        assert sum(written) == sum(_bits(value).numel() for value in state.tensors.values())
        assert max(written) <= 1.02 * sum(written) / ranks


def test_buffers_are_those_of_the_lowest_rank(tmp_path: Path) -> None:
    def save(comm: ThreadComm) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5000), nn.BatchNorm1d(5000))
        # As under DDP: each rank counts what it has seen.
        model.get_buffer("1.running_mean").fill_(1.0 + comm.rank)
        averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        state = flatten_state(model=model, others={"ema": averaged})
        write_state(tmp_path / "s", state, ranks=comm)

    run_on_threads(3, save)
    index, tensors = _read(tmp_path / "s")
    for name in ("model.1.running_mean", "ema.module.1.running_mean"):
        assert torch.equal(tensors[name], torch.ones(5000)), name
    sizes = [file.layout.data_bytes for file in index.files]
    assert max(sizes) < 1.3 * min(sizes), sizes


def test_a_tensor_that_may_differ_is_wholly_that_of_the_lowest_rank(tmp_path: Path) -> None:
    class Watched(nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            # As torchmetrics saves what it has counted.
            destination[f"{prefix}seen"] = self.seen

    def save(comm: ThreadComm) -> None:
        model = Watched(300, 300)
        model.seen = torch.full((5000,), float(comm.rank))
        generator = torch.Generator().manual_seed(comm.rank)
        state = flatten_state(model=model, others={"rng": {"torch": generator.get_state()}})
        write_state(tmp_path / "s", state, ranks=comm)

    run_on_threads(3, save)
    index, tensors = _read(tmp_path / "s")
    assert torch.equal(tensors["rng.torch"], torch.Generator().manual_seed(0).get_state())
    assert torch.equal(tensors["model.seen"], torch.zeros(5000))
    sizes = [file.layout.data_bytes for file in index.files]
    assert max(sizes) < 1.1 * min(sizes), sizes


def test_what_has_the_memory_of_a_parameter_is_shared_out_like_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(300, 300)
    for number, others in enumerate(({"ema": model.state_dict()}, {"net": model})):
        state = flatten_state(others={"a": model.state_dict(), **others, "model": model})
        path = tmp_path / str(number)
        run_on_threads(3, lambda comm, s=state, p=path: write_state(p, s, ranks=comm))
        index, tensors = _read(path)
        assert set(tensors) == {"a.weight", "a.bias"}
        sizes = [file.layout.data_bytes for file in index.files]
        assert max(sizes) < 1.1 * min(sizes), sizes


def test_a_buffer_under_another_name_is_that_of_the_lowest_rank(tmp_path: Path) -> None:
    def save(comm: ThreadComm) -> None:
        module = nn.BatchNorm1d(5000)
        seen = module.get_buffer("running_mean").fill_(1.0 + comm.rank)
        state = flatten_state(others={"watch": {"seen": seen}, "net": module})
        write_state(tmp_path / "s", state, ranks=comm)

    run_on_threads(3, save)
    index, tensors = _read(tmp_path / "s")
    assert index.aliases == {"net.running_mean": "watch.seen"}
    assert torch.equal(tensors["watch.seen"], torch.ones(5000))


def test_another_shape_on_another_rank_is_refused(tmp_path: Path) -> None:
    def save(comm: ThreadComm) -> None:
        state = flatten_state(others={"x": {"w": torch.zeros(5, 2 + comm.rank)}})
        write_state(tmp_path / "s", state, ranks=comm)

    with pytest.raises(
        CheckpointError, match=r"x\.w is float32\[5, 2\] on one rank and float32\[5, 3"
    ):
        run_on_threads(2, save)


def test_another_type_of_the_same_bits_on_another_rank_is_refused(tmp_path: Path) -> None:
    def save(comm: ThreadComm) -> None:
        bits = torch.zeros(5, dtype=torch.uint8)
        state = {"w": bits.view(torch.float8_e4m3fnuz) if comm.rank else bits}
        write_state(tmp_path / "s", flatten_state(others={"x": state}), ranks=comm)

    with pytest.raises(CheckpointError, match=r"x\.w is uint8\[5\] on one rank and float8_e4m3f"):
        run_on_threads(2, save)


def test_what_one_rank_cannot_save_is_an_error_on_all_ranks_at_once(tmp_path: Path) -> None:
    def save(comm: ThreadComm) -> BaseException | None:
        tensor = torch.zeros(5)
        state = {"w": tensor.to_sparse() if comm.rank == 1 else tensor}
        try:
            write_state(tmp_path / "s", flatten_state(others={"x": state}), ranks=comm)
        except (CheckpointError, ConfigError) as error:
            return error
        return None

    first, second = run_on_threads(2, save)
    assert isinstance(second, ConfigError)
    assert str(first) == f"rank 1 of 2 failed: {second}"


def test_a_directory_that_rank_0_cannot_look_at_is_an_error_on_all_ranks_at_once(
    tmp_path: Path,
) -> None:
    def save(comm: ThreadComm) -> BaseException | None:
        state = flatten_state(others={"x": {"w": torch.zeros(5)}})
        try:
            write_state(tmp_path / ("x" * 300), state, ranks=comm)
        except (CheckpointError, OSError) as error:
            return error
        return None

    first, second = run_on_threads(2, save)
    assert isinstance(first, OSError)
    assert isinstance(second, CheckpointError)
    assert "rank 0 of 2 failed: " in str(second)
    assert "File name too long" in str(second)


def test_an_index_that_may_not_be_on_disk_is_removed_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(saving, "fsync_directory", fail)
    with pytest.raises(CheckpointError, match=r"state\.json could not be written"):
        save_state(tmp_path / "s", x={"w": torch.zeros(5)})
    assert list((tmp_path / "s").iterdir()) == []
    monkeypatch.undo()
    save_state(tmp_path / "s", x={"w": torch.zeros(5)})


STRANGE = {
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 7),
    "flags": torch.tensor([True, False, True]),
    "half": torch.randn(999).to(torch.bfloat16),
    "eight": torch.randn(99).to(torch.float8_e4m3fn),
    "rare": torch.randn(99).to(torch.float8_e4m3fnuz),
    "wide": torch.arange(9).to(torch.uint64),
    "complex": torch.randn(5, 4, dtype=torch.complex64),
    "conjugate": torch.randn(5, 4, dtype=torch.complex64).conj(),
    "negative": torch.randn(9, dtype=torch.complex64).conj().imag,
    "turned": torch.randn(1100, 1300).t(),
    "permuted": torch.randn(70, 90, 20, 23).permute(3, 1, 0, 2),
    "spread": torch.randn(1, 1000).expand(3000, 1000),
    "every second": torch.randn(3_000_001)[::2],
    "image": torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last),
    "gradient": torch.randn(3, requires_grad=True),
}


@pytest.mark.parametrize("ranks", [1, 3])
def test_tensors_of_any_type_and_strides_are_saved(tmp_path: Path, ranks: int) -> None:
    state = flatten_state(others={"x": STRANGE})
    run_on_threads(ranks, lambda comm: write_state(tmp_path / "s", state, ranks=comm))
    _, tensors = _read(tmp_path / "s")
    for name, value in STRANGE.items():
        assert torch.equal(_bits(value.detach().resolve_neg()), _bits(tensors[f"x.{name}"])), name


def test_complex_numbers_of_two_doubles_are_saved_as_two_doubles(tmp_path: Path) -> None:
    value = torch.randn(7, 3, dtype=torch.complex128)
    save_state(tmp_path / "s", x={"w": value})
    index, tensors = _read(tmp_path / "s")
    assert torch.equal(torch.view_as_complex(tensors["x.w"]), value)
    assert index.types == {"x.w": "complex128"}


def test_a_complex_number_is_not_cut_in_two(tmp_path: Path) -> None:
    state = flatten_state(others={"x": {"w": torch.tensor(1 - 2j, dtype=torch.complex128)}})
    run_on_threads(2, lambda comm: write_state(tmp_path / "s", state, ranks=comm))
    index, _ = _read(tmp_path / "s")
    assert [p.shape for file in index.files for p in file.layout.chunks] == [(2,)]


def test_bits_are_not_an_alias_of_the_tensor_they_are_a_view_of(tmp_path: Path) -> None:
    value = torch.randn(9).to(torch.float8_e4m3fnuz)
    save_state(tmp_path / "s", x={"a": value, "b": value.view(torch.uint8)})
    index, tensors = _read(tmp_path / "s")
    assert index.types == {"x.a": "float8_e4m3fnuz"}
    assert not index.aliases
    assert torch.equal(tensors["x.a"], tensors["x.b"])


def test_a_conjugated_tensor_is_not_an_alias_of_the_tensor_it_is_a_view_of(tmp_path: Path) -> None:
    for dtype in (torch.complex64, torch.complex128):
        value = torch.randn(7, 3, dtype=dtype)
        views = {"a": value, "b": value.conj(), "c": value.conj()}
        save_state(tmp_path / str(dtype), x=views)
        index, tensors = _read(tmp_path / str(dtype))
        assert index.aliases == {"x.c": "x.b"}
        for name in ("a", "b"):
            saved = tensors[f"x.{name}"]
            saved = saved if saved.is_complex() else torch.view_as_complex(saved)
            assert torch.equal(saved, views[name])


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_a_conjugated_tensor_of_a_rare_type_is_refused(tmp_path: Path) -> None:
    value = torch.zeros(3, dtype=torch.complex64).to(torch.complex32).conj()
    with pytest.raises(ConfigError, match=r"x\.w is a conjugated .* Give x\.w\.resolve_conj"):
        save_state(tmp_path / "s", x={"w": value})


def test_a_child_process_saves_after_its_parent(tmp_path: Path) -> None:
    program = f"""
        import os, torch
        from hpctrain.torch import load_state, save_state
        part = {{"w": torch.ones(3)}}
        save_state("{tmp_path}/parent", part=part)
        child = os.fork()
        save_state("{tmp_path}/child" if child == 0 else "{tmp_path}/again", part=part)
        if child:
            assert os.waitpid(child, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)
    for name in ("child", "again"):
        assert torch.equal(_read(tmp_path / name)[1]["part.w"], torch.ones(3))


def test_shared_weights_are_written_once(tmp_path: Path) -> None:
    embed, head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
    head.weight = embed.weight
    model = nn.ModuleDict({"embed": embed, "head": head})
    save_state(tmp_path / "s", model=model, ema={"embed": embed.weight.detach()[:25]})
    index, tensors = _read(tmp_path / "s")
    assert index.aliases == {"model.head.weight": "model.embed.weight"}
    assert set(tensors) == {"model.embed.weight", "ema.embed"}


def test_a_state_without_tensors_is_saved(tmp_path: Path) -> None:
    save_state(tmp_path / "s", progress={"epoch": 3, "seen": (1, 2)})
    index, tensors = _read(tmp_path / "s")
    assert not tensors
    assert decode(index.values["progress"]) == {"epoch": 3, "seen": (1, 2)}


def test_an_optimizer_that_has_not_stepped_is_not_made_to(tmp_path: Path) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    save_state(tmp_path / "s", model=model, optimizer=optimizer)
    assert not optimizer.state
    assert (
        StateIndex.decode((tmp_path / "s" / INDEX_NAME).read_bytes(), name="").values[
            "optimizer.state"
        ]
        == {}
    )


@pytest.mark.parametrize(
    ("key", "called"), [("global", "the key 'global'"), (torch.zeros(3), r"of shape \(3,\)")]
)
def test_state_of_an_optimizer_that_is_of_no_parameter_is_refused(
    tmp_path: Path, key: Any, called: str
) -> None:
    model, optimizer = _trained()
    optimizer.state[key] = {"step": 3}
    with pytest.raises(ConfigError, match=rf"optimizer has state of .*{called}, which is no param"):
        save_state(tmp_path / "s", model=model, optimizer=optimizer)
    assert not (tmp_path / "s").exists()


def test_names_are_those_of_the_plain_model(tmp_path: Path) -> None:
    inner: Any = torch.compile(nn.Sequential(nn.Linear(2, 2)))
    model = nn.ModuleDict({"module": nn.DataParallel(inner)})
    assert set(flatten_state(model=model).tensors) == {
        "model.module.0.weight",
        "model.module.0.bias",
    }


def test_a_directory_that_holds_a_state_is_not_overwritten(tmp_path: Path) -> None:
    save_state(tmp_path, x={"a": torch.zeros(3)})
    with pytest.raises(ConfigError, match="holds a state already"):
        save_state(tmp_path, x={"a": torch.ones(3)})
    assert torch.equal(_read(tmp_path)[1]["x.a"], torch.zeros(3))


BACKWARD = np.arange(100_000.0)[::-1]
FOREIGN = np.arange(100_000).astype(np.dtype(np.int64).newbyteorder())
WIDE = np.zeros(100_000, dtype=np.longdouble)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": BACKWARD}, r"x\.a .* strides \(-8,\).* numpy\.ascontiguousarray\(x\.a, dtype='fl"),
        ({"a": [FOREIGN]}, r"x\.a\.0 is a NumPy array of type '[<>]i8'.*x\.a\.0, dtype='int64'"),
        ({"a": WIDE}, r"x\.a is a NumPy array .*x\.a, dtype='float64'"),
        ({"w": torch.eye(3).to_sparse()}, r"x\.w is a tensor of kind torch\.sparse_coo"),
        ({"w": torch.empty(3, device="meta")}, r"x\.w is a tensor of kind meta"),
        ({"f": print}, r"x\.f is a builtins\.builtin_function_or_method"),
        (3, "x is a int, which has no state_dict"),
        ({"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)}, r"two things .* called x\.a\.b"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(tmp_path: Path, other: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        save_state(tmp_path / "s", x=other)
    assert not (tmp_path / "s").exists()


def test_a_parameter_of_two_optimizers_is_refused(tmp_path: Path) -> None:
    model = _model()
    several = [torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9) for lr in (0.1, 0.2)]
    with pytest.raises(ConfigError, match="is in two groups of optimizer, which would have one"):
        save_state(tmp_path / "s", model=model, optimizer=several)
    assert not (tmp_path / "s").exists()


def test_what_a_device_raises_on_one_rank_is_told_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpctrain.torch.state.layout.block_source import BlockSource

    fill = BlockSource.fill

    def fail(copies: BlockSource, block: int, memory: memoryview) -> Iterator[int]:
        if threading.current_thread().name.endswith("1"):
            raise torch.OutOfMemoryError("out of memory")
        return fill(copies, block, memory)

    state = flatten_state(model=_model())

    def save(comm: ThreadComm) -> str:
        threading.current_thread().name = f"rank {comm.rank}"
        with pytest.raises(CheckpointError, match=r"out of memory \(1 of 2 ranks") as raised:
            write_state(tmp_path / "s", state, ranks=comm)
        return type(raised.value.__cause__).__name__

    monkeypatch.setattr(BlockSource, "fill", fail)
    assert run_on_threads(2, save) == ["NoneType", "OutOfMemoryError"]


def test_a_full_disk_on_one_rank_is_an_error_on_all_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    model = _model()
    state = flatten_state(model=model)
    write = os.pwrite

    def full(descriptor: int, data: memoryview, position: int) -> int:
        if "00002-of" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, position)

    def save(comm: ThreadComm) -> str:
        try:
            write_state(tmp_path / "s", state, ranks=comm)
        except CheckpointError as error:
            return str(error)
        return ""

    monkeypatch.setattr(os, "pwrite", full)
    answers = run_on_threads(3, save)
    assert len(set(answers)) == 1
    assert "state-00002-of-00003.safetensors" in answers[0]
    assert "No space left on device" in answers[0]
    assert "1 of 3 ranks" in answers[0]
    assert not list((tmp_path / "s").iterdir())
    monkeypatch.undo()
    assert run_on_threads(3, save) == [""] * 3
    _read(tmp_path / "s")


def test_a_plan_that_is_in_use_is_the_next_one_too_until_a_tensor_moves() -> None:
    model, optimizer = _trained()

    def planned() -> SavePlan:
        state = flatten_state(
            model=model, optimizer=optimizer, others={"at": {"step": next(steps)}}
        )
        return plan_save(state, communicator=SerialComm())

    steps = iter(range(9))
    first = planned()
    second = planned()
    assert second.source is first.source
    assert first.index is not None
    assert second.index is not None
    assert [plan.index.values["at"] for plan in (first, second)] == [{"step": 0}, {"step": 1}]
    with torch.no_grad():
        model[0].weight.data = model[0].weight.data.clone()
    moved = planned()
    assert moved.source is not first.source
    assert moved.layout is first.layout


def test_a_plan_that_holds_a_copy_is_not_the_next_one() -> None:
    value = torch.ones(3, dtype=torch.complex128)
    state = flatten_state(others={"x": {"w": value.conj()}})
    first = plan_save(state, communicator=SerialComm())
    value.fill_(1 + 2j)
    second = plan_save(state, communicator=SerialComm())
    assert second.source is not first.source
    assert torch.equal(second.source.tensors[0], torch.tensor([[1.0, -2.0]] * 3).double())
