"""Loading a state: into live tensors, by other ranks than wrote it, each byte read once."""

from __future__ import annotations

import errno
import itertools
import json
import os
import queue
import re
import resource
import subprocess
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from hpctrain.bulk.block_reader import BlockReader, scratch_memory
from hpctrain.bulk.index import INDEX_NAME
from hpctrain.errors import CheckpointError
from hpctrain.own_time import LOOK_INTERVAL_S, Deadline
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads
from hpctrain.torch import load_state, save_state
from hpctrain.torch.state.engine import open_readers, read_blocks
from hpctrain.torch.state.engine.transport import Pending
from hpctrain.torch.state.layout.block_targets import Memory
from hpctrain.torch.state.load import load_into
from hpctrain.torch.state.save import write_state
from hpctrain.torch.state.state_dict import saved_optimizer
from hpctrain.torch.state.state_dict.flatten import FlatState, flatten_state
from hpctrain.world import SerialComm
from tests.damage import flip_bit
from tests.waiting import wait_until


class Model(nn.Module):
    """Has several blocks, shared weights, a buffer, other types, and memory in another order."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(30, 50)
        self.first = nn.Linear(50, 70001)
        self.norm = nn.BatchNorm1d(50)
        self.conv = nn.Conv2d(30, 60, 3)
        weight = self.conv.weight.detach().to(memory_format=torch.channels_last)
        self.conv.weight = nn.Parameter(weight)
        self.last = nn.Linear(50, 30, bias=False)
        self.last.weight = self.embed.weight
        self.register_buffer("narrow", torch.randn(7, 3).to(torch.bfloat16))
        self.register_buffer("count", torch.tensor(seed))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(inputs))
        image = self.conv(hidden[:, :30, None, None].expand(-1, -1, 3, 3))
        total: torch.Tensor = self.first(hidden).sum() + self.last(hidden).sum() + image.sum()
        return total


def _trained(seed: int, **options: Any) -> tuple[Model, torch.optim.Optimizer]:
    model = Model(seed)
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    model(torch.arange(8)).backward()
    optimizer.step()
    return model, optimizer


def _assert_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    assert set(one) == set(other)
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def _evict(directory: Path) -> None:
    for path in directory.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model, torch.optim.Optimizer]:
    """Return a state of one rank, and what was saved."""
    directory = tmp_path_factory.mktemp("saved") / "state"
    model, optimizer = _trained(1, lr=0.25)
    save_state(directory, model=model, optimizer=optimizer, progress={"epoch": 3, "best": (1, "a")})
    return directory, model, optimizer


@pytest.mark.parametrize("cached", [False, True])
def test_a_state_comes_back_into_the_same_memory(
    saved: tuple[Path, Model, torch.optim.Optimizer], cached: bool
) -> None:
    directory, model, optimizer = saved
    _evict(directory)
    if cached:
        for path in directory.iterdir():
            path.read_bytes()
    other, its_optimizer = _trained(2)
    places = [parameter.data_ptr() for parameter in other.parameters()]
    progress: dict[str, Any] = {"epoch": 0, "best": ()}
    load_state(directory, model=other, optimizer=its_optimizer, progress=progress)
    _assert_equal(model.state_dict(), other.state_dict())
    _assert_same_optimizer(optimizer, its_optimizer)
    assert progress == {"epoch": 3, "best": (1, "a")}
    assert places == [parameter.data_ptr() for parameter in other.parameters()]
    assert other.last.weight is other.embed.weight


def _assert_same_optimizer(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    mine, its = one.state_dict(), other.state_dict()
    assert mine["param_groups"] == its["param_groups"]
    assert set(mine["state"]) == set(its["state"])
    for key, value in mine["state"].items():
        _assert_equal(value, its["state"][key])


def test_an_optimizer_that_has_not_stepped_gets_its_state(
    saved: tuple[Path, Model, torch.optim.Optimizer],
) -> None:
    directory, model, optimizer = saved
    other = Model(2)
    its_optimizer = torch.optim.AdamW(other.parameters())
    load_state(directory, model=other, optimizer=its_optimizer)
    _assert_same_optimizer(optimizer, its_optimizer)
    # It trains on as the other does.
    for trained, stepping in ((model, optimizer), (other, its_optimizer)):
        stepping.zero_grad()
        trained(torch.arange(8)).backward()
        stepping.step()
    _assert_equal(model.state_dict(), other.state_dict())


def test_what_goes_wrong_before_reading_is_told_on_all_ranks_and_nothing_is_changed(
    saved: tuple[Path, Model, torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _, _ = saved
    made = saved_optimizer._made

    def fail(parameter: Any, group: Any, name: str, *rest: Any) -> Any:
        # In the middle of its parameters, on one rank.
        if threading.current_thread().name == "rank 1" and "norm" in name:
            raise torch.OutOfMemoryError("out of memory")
        return made(parameter, group, name, *rest)

    monkeypatch.setattr(saved_optimizer, "_made", fail)

    def attempt(comm: ThreadComm) -> tuple[str, int]:
        threading.current_thread().name = f"rank {comm.rank}"
        model = Model(3)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
        with pytest.raises(CheckpointError) as caught:
            load_into(directory, model=model, optimizer=optimizer, others={}, ranks=comm)
        _assert_equal(model.state_dict(), before)
        return str(caught.value), len(optimizer.state)

    told = run_on_threads(2, attempt)
    assert told == [("out of memory Nothing was changed. (rank 1; 1 of 2)", 0)] * 2


UNTOUCHED = "Nothing was changed"
CONJUGATED = {
    "complex64": torch.randn(5, 4, dtype=torch.complex64).conj(),
    "complex128": torch.randn(5, 4, dtype=torch.complex128).conj(),
    "scalar": torch.tensor(1 - 2j, dtype=torch.complex128).conj(),
    "empty": torch.empty(0, 4, dtype=torch.complex128).conj(),
    "turned": torch.randn(5, 4, dtype=torch.complex128).t().conj(),
    "negated": torch.randn(9, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("live_is_conjugated", [False, True])
@pytest.mark.parametrize("saved_is_conjugated", [False, True])
def test_conjugated_and_negated_tensors_come_back(
    tmp_path: Path, saved_is_conjugated: bool, live_is_conjugated: bool
) -> None:
    resolved = {name: t.resolve_conj().resolve_neg() for name, t in CONJUGATED.items()}
    save_state(tmp_path / "s", x=CONJUGATED if saved_is_conjugated else resolved)
    live = {name: torch.zeros_like(t) for name, t in resolved.items()}
    if live_is_conjugated:
        for name, tensor in live.items():
            live[name] = tensor.conj() if tensor.is_complex() else _negated(tensor)
        assert all(tensor.is_conj() or tensor.is_neg() for tensor in live.values())
    places = {name: tensor.data_ptr() for name, tensor in live.items()}
    tensors = dict(live)
    load_state(tmp_path / "s", x=live)
    for name, tensor in tensors.items():
        assert live[name] is tensor
        assert tensor.data_ptr() == places[name]
        assert torch.equal(tensor, resolved[name]), name


BITS = torch.arange(120, dtype=torch.uint8)
RARE = {
    "pairs": torch.randn(70, 30, dtype=torch.complex128),
    "pair": torch.tensor(1 - 2j, dtype=torch.complex128),
    "no pair": torch.empty(0, 4, dtype=torch.complex128),
    "turned": torch.randn(7, 9, dtype=torch.complex128).t(),
    "fnuz": BITS.view(torch.float8_e4m3fnuz),
    "powers": BITS.view(torch.float8_e8m0fnu).reshape(40, 3),
    "halves": torch.arange(60, dtype=torch.int16).view(torch.complex32),
}


@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (3, 2), (2, 3)])
def test_types_that_safetensors_lacks_come_back_on_any_ranks(
    tmp_path: Path, writers: int, readers: int
) -> None:
    state = flatten_state(others={"part": RARE})
    run_on_threads(writers, lambda comm: write_state(tmp_path / "s", state, ranks=comm))
    mine = [{name: _zeros(tensor) for name, tensor in RARE.items()} for _ in range(readers)]
    _load_on(readers, tmp_path / "s", mine)
    for loaded in mine:
        for name, tensor in RARE.items():
            assert torch.equal(_bits(loaded[name]), _bits(tensor)), name


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(_bits(tensor)).view(tensor.dtype).reshape(tensor.shape)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize(
    ("saved", "live", "complaint"),
    [
        ("fnuz", BITS.view(torch.float8_e5m2fnuz), r"float8_e5m2fnuz\[120\].* float8_e4m3fnuz\["),
        ("fnuz", BITS.clone(), r"x\.w is uint8\[120\], .* it is float8_e4m3fnuz\[120\]"),
        ("pair", torch.zeros(2, dtype=torch.float64), r"is float64\[2\], .* it is complex128\[\]"),
    ],
)
def test_other_types_with_the_same_bits_are_refused(
    tmp_path: Path, saved: str, live: torch.Tensor, complaint: str
) -> None:
    before = live.clone()
    save_state(tmp_path / "s", x={"w": RARE[saved]})
    with pytest.raises(CheckpointError, match=complaint):
        load_state(tmp_path / "s", x={"w": live})
    save_state(tmp_path / "other", x={"w": live})
    with pytest.raises(CheckpointError, match=UNTOUCHED):
        load_state(tmp_path / "other", x={"w": RARE[saved].clone()})
    assert torch.equal(_bits(live), _bits(before))


def test_a_state_whose_index_tells_of_no_types_is_loaded_as_before(tmp_path: Path) -> None:
    save_state(tmp_path / "s", part=RARE)
    index = json.loads((tmp_path / "s" / INDEX_NAME).read_bytes())
    del index["types"]
    (tmp_path / "s" / INDEX_NAME).write_text(json.dumps(index))
    live = {name: _zeros(tensor) for name, tensor in RARE.items()}
    load_state(tmp_path / "s", part=live)
    for name, tensor in RARE.items():
        assert torch.equal(_bits(live[name]), _bits(tensor)), name


@pytest.mark.parametrize("dtype", [torch.complex128, torch.float8_e4m3fnuz])
def test_an_optimizer_that_has_not_stepped_gets_state_of_the_type_it_had(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Module()
        weight = torch.arange(1, 4).to(torch.complex128)
        model.weight = nn.Parameter(weight)
        return model, torch.optim.Adam(model.parameters())

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model.get_parameter("weight").abs().square().sum().backward()
        optimizer.step()

    one, other = made(), made()
    step(*one)
    for state in one[1].state.values():
        state["compressed"] = torch.ones(5).to(dtype)
    save_state(tmp_path / "s", model=one[0], optimizer=one[1])
    load_state(tmp_path / "s", model=other[0], optimizer=other[1])
    (state,) = other[1].state.values()
    assert state["exp_avg"].dtype == torch.complex128
    assert state["exp_avg"].shape == (3,)
    assert state["compressed"].dtype == dtype
    for each in (one, other):
        step(*each)
    assert torch.equal(one[0].get_parameter("weight"), other[0].get_parameter("weight"))


EXPANDED = {
    "all": torch.zeros(1).expand(1000),
    "rows": torch.zeros(1, 1000).expand(30, 1000),
    "columns": torch.zeros(1000, 1).expand(1000, 30),
    "conjugated": torch.zeros(1, dtype=torch.complex128).expand(9).conj(),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_a_tensor_whose_elements_share_memory_is_refused_before_anything_is_changed(
    tmp_path: Path, name: str
) -> None:
    live = {"first": torch.zeros(7), name: EXPANDED[name]}
    save_state(tmp_path / "s", x={"first": torch.ones(7), name: EXPANDED[name] + 1})
    message = rf"x\.{name} is .* as after expand\(\).* Put x\.{name}\.clone\(\) .*{UNTOUCHED}"
    with pytest.raises(CheckpointError, match=message):
        load_state(tmp_path / "s", x=live)
    assert not any(tensor.any() for tensor in live.values())
    live[name] = live[name].clone()
    load_state(tmp_path / "s", x=live)
    assert all((tensor == 1).all() for tensor in live.values())


def test_strides_of_zero_that_nothing_shares_are_loaded(tmp_path: Path) -> None:
    live = {"one": torch.zeros(1, 5).as_strided((1, 5), (0, 1)), "none": torch.ones(0).expand(4, 0)}
    save_state(tmp_path / "s", x={name: torch.ones_like(tensor) for name, tensor in live.items()})
    load_state(tmp_path / "s", x=live)
    assert live["one"].all()


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    return torch.complex(tensor, tensor).conj().imag


class ThreadTransport:
    """Sends bytes between threads of this process."""

    def __init__(self, rank: int, lines: Mapping[tuple[int, int], queue.SimpleQueue[bytes]]):
        self._rank, self._lines = rank, lines
        self._waiting: defaultdict[int, deque[memoryview]] = defaultdict(deque)
        self.sent = 0

    def send(self, content: memoryview, rank: int) -> Pending:
        self.sent += len(content)
        self._lines[self._rank, rank].put(bytes(content))
        return _Left()

    def receive(self, into: memoryview, rank: int) -> Pending:
        return _Arriving(self._lines[rank, self._rank], self._waiting[rank], into)


class _Left:
    def done(self) -> bool:
        return True


class _Arriving:
    def __init__(
        self, line: queue.SimpleQueue[bytes], waiting: deque[memoryview], into: memoryview
    ) -> None:
        self._line, self._waiting, self._into = line, waiting, into
        waiting.append(into)

    def done(self) -> bool:
        # As with MPI: what arrives goes to who asked first, whoever looks for it.
        while self._waiting and not self._line.empty():
            self._waiting.popleft()[:] = self._line.get_nowait()
        return all(each is not self._into for each in self._waiting)


def _load_on(ranks: int, directory: Path, states: list[dict[str, Any]]) -> list[Any]:
    lines: dict[tuple[int, int], queue.SimpleQueue[bytes]]
    lines = {(a, b): queue.SimpleQueue() for a in range(ranks) for b in range(ranks)}

    def load(comm: ThreadComm) -> Any:
        carrier = ThreadTransport(comm.rank, lines)
        loaded = load_into(
            directory,
            model=None,
            optimizer=None,
            others={"part": states[comm.rank]},
            ranks=comm,
            carrier=carrier,
            timeout_s=20,
        )
        return loaded.bytes_read, carrier.sent

    return run_on_threads(ranks, load)


@pytest.mark.parametrize(("writers", "readers"), [(1, 3), (3, 1), (2, 2), (3, 2)])
def test_replicas_read_each_byte_once_and_send_it_on(
    tmp_path: Path, writers: int, readers: int
) -> None:
    content = {"w": torch.randn(5, 1_000_003), "b": torch.arange(7), "empty": torch.empty(0, 3)}
    state = _replicated(content)
    run_on_threads(writers, lambda comm: write_state(tmp_path / "s", state, ranks=comm))
    mine = [{name: torch.zeros_like(t) for name, t in content.items()} for _ in range(readers)]
    results = _load_on(readers, tmp_path / "s", mine)
    for loaded in mine:
        _assert_equal(content, loaded)
    data = sum(t.numel() * t.element_size() for t in content.values())
    assert {read for read, _ in results} == {_size(tmp_path / "s")}
    assert sum(sent for _, sent in results) == data * (readers - 1)


def _replicated(content: dict[str, torch.Tensor]) -> FlatState:
    """Return a state of which each rank writes a part, as of parameters."""
    state = flatten_state(others={"part": content})
    return replace(state, replicated=frozenset(state.tensors))


def _two_written(directory: Path, content: dict[str, torch.Tensor]) -> list[Path]:
    """Save on two ranks; return the files."""
    state = _replicated(content)
    run_on_threads(2, lambda comm: write_state(directory, state, ranks=comm))
    return sorted(directory.glob("*.safetensors"))


CONTENT = {"w": torch.arange(5_000_000.0), "b": torch.arange(7)}


def _refused(directory: Path, state: dict[str, Any]) -> str:
    """Load on two ranks; return what all of them raise."""
    messages = _refusals(directory, state)
    assert len(set(messages)) == 1
    return messages[0]


def _refusals(
    directory: Path,
    *states: dict[str, Any],
    carrier: type[ThreadTransport] = ThreadTransport,
    timeout_s: float = 20,
) -> list[str]:
    """Load on two ranks, into the state of each or into one; return what each raises."""
    lines: dict[tuple[int, int], queue.SimpleQueue[bytes]]
    lines = {(a, b): queue.SimpleQueue() for a in range(2) for b in range(2)}

    def attempt(comm: ThreadComm) -> str:
        with pytest.raises(CheckpointError) as caught:
            load_into(
                directory,
                model=None,
                optimizer=None,
                others={"part": states[comm.rank % len(states)]},
                ranks=comm,
                carrier=carrier(comm.rank, lines),
                timeout_s=timeout_s,
            )
        return str(caught.value)

    return run_on_threads(2, attempt)


class LostTransport(ThreadTransport):
    """Sends nothing."""

    def send(self, content: memoryview, rank: int) -> Pending:
        return _Left()


def test_who_waits_for_a_block_of_another_rank_in_vain_is_told_which(tmp_path: Path) -> None:
    _two_written(tmp_path / "s", CONTENT)
    lives = [{name: torch.zeros_like(t) for name, t in CONTENT.items()} for _ in range(2)]
    messages = _refusals(tmp_path / "s", *lives, carrier=LostTransport, timeout_s=1)
    for rank, message in enumerate(messages):
        assert f"rank {rank} waited 1 s for rank {1 - rank}, with which it shares block" in message
        assert "Every rank must call load_state()" in message
        assert "Part of the state was changed" in message


class LateTransport(ThreadTransport):
    """Sends nothing before something has happened."""

    def __init__(self, *line: Any, happened: Callable[[], bool]) -> None:
        super().__init__(*line)
        self._happened = happened
        self._kept: deque[Callable[[], object]] = deque()

    def send(self, content: memoryview, rank: int) -> Pending:
        self._kept.append(partial(super().send, content, rank))
        return _Late(self._happened, self._kept)


class _Late:
    def __init__(self, happened: Callable[[], bool], kept: deque[Callable[[], object]]) -> None:
        self._happened, self._kept = happened, kept
        self._send = kept[-1]

    def done(self) -> bool:
        # In order, whichever of them is looked for.
        while self._kept and self._happened():
            self._kept.popleft()()
        return self._send not in self._kept


def test_who_waits_for_another_rank_reads_and_sends_meanwhile(tmp_path: Path) -> None:
    content = {"w": torch.arange(12_000_000.0)}
    _two_written(tmp_path / "s", content)
    lines = {(a, b): queue.SimpleQueue[bytes]() for a in range(2) for b in range(2)}
    first = ThreadTransport(0, lines)
    # Nearly all that it reads, and more than it has memory for.
    last = LateTransport(1, lines, happened=lambda: first.sent > 18 * 2**20)

    def load(comm: ThreadComm) -> bool:
        live = torch.zeros_like(content["w"])
        load_into(
            tmp_path / "s",
            model=None,
            optimizer=None,
            others={"part": {"w": live}},
            ranks=comm,
            carrier=(first, last)[comm.rank],
            timeout_s=20,
        )
        return torch.equal(live, content["w"])

    assert run_on_threads(2, load) == [True, True]
    assert 18 * 2**20 < first.sent < 48_000_000 - 18 * 2**20


def test_a_disk_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = _two_written(tmp_path / "s", CONTENT)
    released = threading.Event()
    read = BlockReader.read_into

    def hang(reader: BlockReader, block: int, *memories: Any) -> None:
        if (reader.path, block) == (second, 1):
            released.wait(60)
        read(reader, block, *memories)

    monkeypatch.setattr(BlockReader, "read_into", hang)
    waited: list[float] = []

    def wait_for_all_but_one(left: Any, timeout_s: float) -> Any:
        """Return once the others have come; the time is that of a clock."""
        waited.append(timeout_s)
        return wait_until(lambda: (found := wait(left, 0.01)) and len(found[1]) == 1 and found)

    monkeypatch.setattr(read_blocks, "wait", wait_for_all_but_one)
    clocked = partial(Deadline, clock=lambda: sum(waited))
    monkeypatch.setattr(read_blocks, "Deadline", clocked)
    try:
        with pytest.raises(CheckpointError, match=f"{second} did not give its block 1 in 3 s"):
            load_into(
                tmp_path / "s",
                model=None,
                optimizer=None,
                others={"part": {name: torch.zeros_like(t) for name, t in CONTENT.items()}},
                ranks=SerialComm(),
                timeout_s=3,
            )
    finally:
        released.set()
    # Since the last of the others came, which took one look.
    assert 3 <= sum(waited) <= 3 + 2 * LOOK_INTERVAL_S


def test_a_disk_that_does_not_answer_is_told_of_on_the_rank_that_reads_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = _two_written(tmp_path / "s", CONTENT)
    released = threading.Event()
    read = BlockReader.read_part

    def hang(reader: BlockReader, block: int, first: int, scratch: memoryview) -> memoryview:
        if (reader.path, block) == (second, 1):
            released.wait(60)
        return read(reader, block, first, scratch)

    monkeypatch.setattr(BlockReader, "read_part", hang)
    live = {name: torch.zeros_like(value) for name, value in CONTENT.items()}
    try:
        messages = _refusals(tmp_path / "s", live, timeout_s=1)
    finally:
        released.set()
    (reads,) = [text for text in messages if f"{second} did not give its block 1 in 1 s" in text]
    (waits,) = [text for text in messages if text != reads]
    assert f"shares block 1 of {second}" in waits


def test_a_file_that_cannot_be_opened_is_told_on_all_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = _two_written(tmp_path / "s", CONTENT)

    def refuse(path: Path, layout: Any) -> BlockReader:
        if path == second:
            raise CheckpointError(f"{path} cannot be opened: {os.strerror(errno.EACCES)}.")
        return BlockReader(path, layout)

    monkeypatch.setattr(open_readers, "BlockReader", refuse)
    live = {name: torch.full_like(value, 7) for name, value in CONTENT.items()}
    message = _refused(tmp_path / "s", live)
    expected = f"{second} cannot be opened: Permission denied. Load another checkpoint. Nothing was"
    assert message.startswith(expected)
    assert all((value == 7).all() for value in live.values())


def test_too_little_memory_on_one_rank_is_told_on_all_before_anything_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _two_written(tmp_path / "s", CONTENT)
    taken = itertools.count()

    def run_out() -> memoryview:
        # Both ranks take some, and one of them gets no more.
        if next(taken) == 15:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return scratch_memory()

    monkeypatch.setattr(read_blocks, "scratch_memory", run_out)
    live = {name: torch.full_like(value, 7) for name, value in CONTENT.items()}
    message = _refused(tmp_path / "s", live)
    assert "no memory to read a checkpoint through: [Errno 12] Cannot allocate memory" in message
    assert "Nothing was changed" in message
    assert all((value == 7).all() for value in live.values())


# Less than each rank would wait for the other.
@pytest.mark.timeout(45)
def test_what_a_device_raises_on_one_rank_is_told_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _two_written(tmp_path / "s", CONTENT)
    lives = [{name: torch.zeros_like(value) for name, value in CONTENT.items()} for _ in range(2)]
    copy = Memory.copy

    def fail(memory: Memory, *content: Any) -> None:
        if memory.array is not None and memory.array.ctypes.data == lives[1]["w"].data_ptr():
            raise torch.OutOfMemoryError("out of memory")
        copy(memory, *content)

    monkeypatch.setattr(Memory, "copy", fail)
    (message,) = set(_refusals(tmp_path / "s", *lives, timeout_s=60))
    assert message.startswith("out of memory")
    assert "load another checkpoint" in message


def test_a_flipped_bit_is_told_on_all_ranks_with_file_and_tensor(tmp_path: Path) -> None:
    _, second = _two_written(tmp_path / "s", CONTENT)
    flip_bit(second, second.stat().st_size - 1)
    live = {name: torch.zeros_like(value) for name, value in CONTENT.items()}
    message = _refused(tmp_path / "s", live)
    assert f"{second} is damaged: block 1 of 2, with part.w, has digest" in message
    assert "cannot be used any more: load another checkpoint" in message


def _written_by(ranks: int, directory: Path) -> dict[str, torch.Tensor]:
    content = {"w": torch.arange(1000.0 * ranks).view(ranks, 1000)}
    state = _replicated(content)
    run_on_threads(ranks, lambda comm: write_state(directory, state, ranks=comm))
    assert len(list(directory.glob("*.safetensors"))) == ranks
    return content


@contextmanager
def _limit_of_files(more: int) -> Iterator[None]:
    """Let this process have so many more open files than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_process_loads_more_files_than_it_may_have_open(tmp_path: Path) -> None:
    content = _written_by(100, tmp_path / "s")
    live = {"w": torch.zeros(100, 1000)}
    with _limit_of_files(160):
        load_state(tmp_path / "s", part=live)
    _assert_equal(content, live)


def test_a_process_that_may_open_too_few_files_is_told_the_limit(tmp_path: Path) -> None:
    _written_by(9, tmp_path / "s")
    with _limit_of_files(8), pytest.raises(CheckpointError, match=r"Too many .*ulimit -n\)\. Noth"):
        load_state(tmp_path / "s", part={"w": torch.zeros(9, 1000)})


def test_files_that_are_opened_again_are_read_for_other_ranks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_readers, "_KEPT_OPEN", 1)
    content = _written_by(7, tmp_path / "s")
    mine = [{"w": torch.zeros(7, 1000)} for _ in range(2)]
    _load_on(2, tmp_path / "s", mine)
    for loaded in mine:
        _assert_equal(content, loaded)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_block_that_cannot_be_read_is_told_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    _, second = _two_written(tmp_path / "s", CONTENT)
    read = BlockReader.read_part

    def failing(reader: BlockReader, block: int, first: int, scratch: memoryview) -> memoryview:
        if (reader.path, block) == (second, 1):
            raise reader._unreadable(block, OSError(number, os.strerror(number)))
        return read(reader, block, first, scratch)

    monkeypatch.setattr(BlockReader, "read_part", failing)
    live = {name: torch.zeros_like(value) for name, value in CONTENT.items()}
    message = _refused(tmp_path / "s", live)
    assert f"{second} cannot be read in block 1 of 2, with part.w: {os.strerror(number)}" in message
    assert "cannot be used any more: load another checkpoint" in message


@pytest.mark.parametrize("damage", ["truncated", "torn header", "missing", "exchanged"])
def test_damage_that_headers_tell_changes_nothing(tmp_path: Path, damage: str) -> None:
    first, second = _two_written(tmp_path / "s", CONTENT)
    if damage == "truncated":
        os.truncate(second, second.stat().st_size - 1)
    elif damage == "torn header":
        flip_bit(second, 9)
    elif damage == "missing":
        second.unlink()
    else:
        second.write_bytes(first.read_bytes())
    live = {name: torch.zeros_like(value) for name, value in CONTENT.items()}
    message = _refused(tmp_path / "s", live)
    assert str(second) in message
    assert UNTOUCHED in message
    assert not any(value.any() for value in live.values())


def _without(name: str) -> dict[str, Any]:
    return {key: torch.zeros_like(value) for key, value in CONTENT.items() if key != name}


@pytest.mark.parametrize(
    ("live", "complaint"),
    [
        ({**_without(""), "more": torch.zeros(2)}, r"s has no part.more, which the state"),
        (
            {**_without("w"), "w": torch.zeros(2, 3)},
            r"part.w is float32\[2, 3\], and in .* it is float32\[50",
        ),
        (
            {**_without("b"), "b": torch.zeros(7)},
            r"part.b is float32\[7\], and in .* it is int64\[7\]",
        ),
        ({**_without(""), "value": 3}, r"s has no part.value, which the state"),
    ],
)
def test_another_state_than_was_saved_is_refused_and_nothing_is_changed(
    tmp_path: Path, live: dict[str, Any], complaint: str
) -> None:
    _two_written(tmp_path / "s", CONTENT)
    message = _refused(tmp_path / "s", live)
    assert re.search(complaint, message)
    assert UNTOUCHED in message
    assert not any(torch.is_tensor(value) and value.any() for value in live.values())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"format": 99}', "has format 99, and this hpctrain reads up to 1. Use a newer"),
        (b'{"format": 1, "files": [', "is damaged: it is torn"),
        (None, "has lost its state.json, or was never completed"),
    ],
)
def test_an_index_that_cannot_be_read_is_told(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    _two_written(tmp_path / "s", CONTENT)
    index = tmp_path / "s" / INDEX_NAME
    if content is None:
        index.unlink()
    else:
        index.write_bytes(content)
    message = _refused(tmp_path / "s", _without(""))
    assert complaint in message
    assert str(tmp_path / "s") in message


def test_an_optimizer_with_other_groups_is_refused_before_anything_is_changed(
    saved: tuple[Path, Model, torch.optim.Optimizer],
) -> None:
    other = Model(2)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    first, *rest = other.parameters()
    its_optimizer = torch.optim.AdamW([{"params": [first]}, {"params": rest}])
    with pytest.raises(CheckpointError, match=r"has a group of 1 parameters.*Nothing was changed"):
        load_state(saved[0], model=other, optimizer=its_optimizer)
    _assert_equal(before, other.state_dict())
    assert not its_optimizer.state


@pytest.mark.parametrize("all_have_tensors", [True, False])
def test_other_groups_with_a_learning_rate_in_a_tensor_are_refused_before_anything_is_changed(
    tmp_path: Path, all_have_tensors: bool
) -> None:
    def grouped(size: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        parameters = list(model.parameters())
        groups: list[dict[str, Any]]
        groups = [{"params": parameters[:size], "lr": torch.tensor(0.5)}]
        groups += [{"params": parameters[size:], "lr": 0.5}]
        if all_have_tensors:
            groups[1]["lr"] = torch.tensor(0.5)
        return model, torch.optim.AdamW(groups, foreach=False)

    model, optimizer = grouped(1)
    save_state(tmp_path / "s", model=model, optimizer=optimizer)
    load_state(tmp_path / "s", model=model, optimizer=optimizer)
    model, optimizer = grouped(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"has a group of 2 parameters.*Nothing was changed"):
        load_state(tmp_path / "s", model=model, optimizer=optimizer)
    _assert_equal(before, model.state_dict())


class Statistics(NamedTuple):
    """What a training function may keep."""

    mean: torch.Tensor
    seen: int


def test_tuples_with_names_come_back_as_such(tmp_path: Path) -> None:
    kept = {"a": Statistics(torch.ones(3), 7), "b": [(torch.ones(2), 3)]}
    save_state(tmp_path / "s", kept=kept)
    live = {"a": Statistics(torch.zeros(3), 0), "b": [(torch.zeros(2), 0)]}
    load_state(tmp_path / "s", kept=live)
    mean, seen = live["a"]
    assert isinstance(live["a"], Statistics)
    assert torch.equal(mean, torch.ones(3))
    assert seen == 7
    ((other, three),) = live["b"]
    assert torch.equal(other, torch.ones(2))
    assert three == 3


def test_what_the_checkpoint_lacks_is_not_taken_from_something_else(
    saved: tuple[Path, Model, torch.optim.Optimizer],
) -> None:
    ema = {f"model.{name}": value for name, value in Model(2).state_dict().items()}
    with pytest.raises(CheckpointError, match=r"has no ema.model"):
        load_state(saved[0], ema=ema)


def test_counters_that_a_fused_step_cannot_reach_are_made_anew(tmp_path: Path) -> None:
    model, optimizer = _trained(1, fused=True)
    save_state(tmp_path / "s", model=model, optimizer=optimizer)
    model, optimizer = _trained(2, fused=False)
    # On another device than the parameters, as they are without fused if those are on a GPU.
    for state in optimizer.state.values():
        state["step"] = torch.empty((), device="meta")
    load_state(tmp_path / "s", model=model, optimizer=optimizer)
    assert [state["step"].item() for state in optimizer.state.values()] == [1] * len(
        optimizer.state
    )


def test_an_optimizer_keeps_what_it_had_if_nothing_is_loaded(
    saved: tuple[Path, Model, torch.optim.Optimizer],
) -> None:
    other = Model(2)
    its_optimizer = torch.optim.AdamW(other.parameters())
    other.first = nn.Linear(50, 3)
    with pytest.raises(CheckpointError, match=r"optimizer has a parameter"):
        load_state(saved[0], model=other, optimizer=its_optimizer)
    assert not its_optimizer.state


LOADS = """
import sys, torch
from hpctrain.torch import load_state, save_state
save_state(sys.argv[1], model=torch.nn.Linear(2, 2))
load_state(sys.argv[1], model=torch.nn.Linear(2, 2))
print([name for name in sys.modules if "state.dcp.torch_files" in name])
"""


def test_a_load_does_not_import_what_reads_files_of_other_programs(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LOADS, str(tmp_path / "state")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
