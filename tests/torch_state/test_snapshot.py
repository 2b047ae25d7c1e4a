"""Snapshots: no two steps in one, whoever changes the state meanwhile."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.multiprocessing.reductions import StorageWeakRef

from hpctrain.bulk.state_file import BLOCK_BYTES
from hpctrain.bulk.state_file_writer import StateFileWriter
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.engine import snapshot_copies
from hpctrain.torch.state.engine.snapshot import Snapshot, Snapshots
from hpctrain.torch.state.engine.step_gate import wait_for_all
from hpctrain.torch.state.layout.save_plan import SavePlan, plan_save
from hpctrain.torch.state.state_dict.flatten import flatten_state
from hpctrain.world import SerialComm

TIMEOUT_S = 60.0


def _plan(tensors: Mapping[str, torch.Tensor]) -> SavePlan:
    return plan_save(flatten_state(others={"its": dict(tensors)}), communicator=SerialComm())


class CountingOptimizer(torch.optim.Optimizer):
    """Sets all parameters, and all of its state, to the number of the step."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self.steps = 0
        for parameter in parameters:
            self.state[parameter]["moment"] = torch.zeros_like(parameter)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        with torch.no_grad():
            for parameter, state in self.state.items():
                parameter.fill_(self.steps)
                state["moment"].fill_(self.steps)


def _parameters(blocks: int) -> list[torch.nn.Parameter]:
    # Odd sizes, so that blocks begin and end within tensors.
    elements = BLOCK_BYTES // 4 // 3 + 1
    return [torch.nn.Parameter(torch.zeros(elements)) for _ in range(3 * blocks)]


def _tensors_of(optimizer: torch.optim.Optimizer, name: str = "") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for group in optimizer.param_groups:
        for number, parameter in enumerate(group["params"]):
            found[f"{name}{number}"] = parameter
            for key, value in optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor):
                    found[f"{name}{number}.{key}"] = value
    return found


class Waiting:
    """A call in a thread, of which it is known that it waits."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    def still_waits(self) -> bool:
        """Return whether it does not get on, which takes a while to say."""
        self._thread.join(0.2)
        return self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


class Finishing(Waiting):
    """`Snapshot.finish` in a thread, as an upload does."""

    def __init__(self, snapshot: Snapshot, path: Path) -> None:
        self._path = path
        super().__init__(lambda: snapshot.finish(path))

    def content(self) -> dict[str, torch.Tensor]:
        self.end()
        return {k.removeprefix("its."): v for k, v in load_file(self._path).items()}


@pytest.mark.parametrize("memory_blocks", [4, None], ids=["little", "enough"])
def test_no_snapshot_mixes_two_steps(tmp_path: Path, memory_blocks: int | None) -> None:
    optimizer = CountingOptimizer(_parameters(3))
    plan = _plan(_tensors_of(optimizer))
    memory = None if memory_blocks is None else memory_blocks * BLOCK_BYTES
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=memory)
    finishing = {}
    for step in range(24):
        if step % 4 != 1:
            snapshot = snapshots.take(plan, changed_by=[optimizer], name=f"step {step}")
            finishing[step] = Finishing(snapshot, tmp_path / f"{step}")
        optimizer.step()
    for step, each in finishing.items():
        for name, tensor in each.content().items():
            assert torch.equal(tensor, torch.full_like(tensor, step)), (step, name)


def test_a_step_waits_until_the_disk_has_what_memory_has_no_room_for(tmp_path: Path) -> None:
    optimizer = CountingOptimizer(_parameters(4))
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    snapshot = snapshots.take(_plan(_tensors_of(optimizer)), changed_by=[optimizer], name="it")
    step = Waiting(optimizer.step)
    assert step.still_waits()
    assert optimizer.steps == 0
    content = Finishing(snapshot, tmp_path / "f").content()
    step.end()
    assert not any(tensor.any() for tensor in content.values())


def test_a_forked_child_waits_for_no_copy(tmp_path: Path) -> None:
    optimizer = CountingOptimizer(_parameters(4))
    model = torch.nn.ParameterList(optimizer.param_groups[0]["params"])
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    plan = _plan(_tensors_of(optimizer))
    snapshot = snapshots.take(plan, changed_by=[optimizer, model], name="it")
    assert not snapshot.is_copied()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            # Ends the child where it would wait.
            signal.alarm(15)
            # Threads of OpenMP are not there in a fork.
            torch.set_num_threads(1)
            optimizer.step()
            model.load_state_dict({}, strict=False)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    # What the parent holds back stays so.
    step = Waiting(optimizer.step)
    assert step.still_waits()
    assert not any(t.any() for t in Finishing(snapshot, tmp_path / "f").content().values())
    step.end()


def test_only_what_makes_room_is_written_while_something_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = CountingOptimizer(_parameters(4))
    plan = _plan(_tensors_of(optimizer))
    may_copy = threading.Semaphore(plan.layout.blocks - 1)
    written: list[int] = []

    def copy_when_told(*arguments: Any) -> None:
        assert may_copy.acquire(timeout=TIMEOUT_S)
        copy_tensors(*arguments)

    def put_and_note(writer: StateFileWriter, block: int, *arguments: Any) -> None:
        written.append(block)
        put(writer, block, *arguments)

    copy_tensors, put = snapshot_copies.copy_tensors, StateFileWriter.put
    monkeypatch.setattr(snapshot_copies, "copy_tensors", copy_when_told)
    monkeypatch.setattr(StateFileWriter, "put", put_and_note)
    memory = (plan.layout.blocks - 2) * BLOCK_BYTES
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=memory)
    snapshot = snapshots.take(plan, changed_by=[optimizer], name="it")
    finishing = Finishing(snapshot, tmp_path / "f")
    snapshot.wait_until_copied(plan.layout.blocks - 1)
    assert finishing.still_waits()
    assert written == [0, 1]
    may_copy.release()
    assert len(finishing.content()) == 24
    assert written == list(range(plan.layout.blocks))


def test_what_was_copied_is_kept_by_nobody_and_the_model_can_be_copied(tmp_path: Path) -> None:
    model = torch.nn.Linear(1000, 1000)
    optimizer = CountingOptimizer(list(model.parameters()))
    snapshots = Snapshots(timeout_s=TIMEOUT_S)
    taken, old = [], []
    for number in range(3):
        plan = _plan(_tensors_of(optimizer))
        snapshot = snapshots.take(plan, changed_by=[optimizer, model], name="it")
        copy.deepcopy(model)
        pickle.dumps(model)
        Finishing(snapshot, tmp_path / f"{number}").content()
        optimizer.step()
        taken.append(weakref.ref(snapshot))
        old.append(StorageWeakRef(model.weight.untyped_storage()))
        model.weight.data = model.weight.data.clone()
        del snapshot, plan
    gc.collect()
    assert [reference() is None for reference in taken[:2]] == [True, True]
    assert [storage.expired() for storage in old[:2]] == [True, True]


def test_a_model_that_nobody_has_any_more_goes_with_all_that_was_prepared_for_it(
    tmp_path: Path,
) -> None:
    snapshots = Snapshots(timeout_s=TIMEOUT_S)

    def phase() -> list[weakref.ref[Any]]:
        model = torch.nn.Linear(1000, 1000)
        optimizer = CountingOptimizer(list(model.parameters()))
        plan = _plan(_tensors_of(optimizer))
        snapshots.take(plan, changed_by=[model, optimizer], name="it").finish(tmp_path / "f")
        return [weakref.ref(part) for part in (model.weight, optimizer)]

    gone = phase()
    # The thread that copies has nothing else to do by then.
    snapshots.take(_plan({"x": torch.zeros(3)}), changed_by=[], name="it").wait_until_copied()
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_all_who_come_while_a_snapshot_is_copied_wait(tmp_path: Path) -> None:
    optimizer = CountingOptimizer(_parameters(4))
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    snapshot = snapshots.take(_plan(_tensors_of(optimizer)), changed_by=[optimizer], name="it")
    loading = Waiting(wait_for_all)
    assert loading.still_waits()
    step = Waiting(optimizer.step)
    assert step.still_waits()
    content = Finishing(snapshot, tmp_path / "f").content()
    loading.end()
    step.end()
    assert not any(tensor.any() for tensor in content.values())


def test_an_optimizer_waits_only_for_what_it_changes(tmp_path: Path) -> None:
    first, second = CountingOptimizer(_parameters(1)), CountingOptimizer(_parameters(4))
    plan = _plan(_tensors_of(first, "a") | _tensors_of(second, "b"))
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    snapshot = snapshots.take(plan, changed_by=[first, second], name="it")
    first.step()
    step = Waiting(second.step)
    assert step.still_waits()
    content = Finishing(snapshot, tmp_path / "f").content()
    step.end()
    assert not any(tensor.any() for tensor in content.values())


def test_optimizers_with_parts_of_one_memory_both_wait(tmp_path: Path) -> None:
    # As cuDNN keeps the weights of a layer of an LSTM.
    both = torch.zeros(4, BLOCK_BYTES // 4)
    parts = [torch.nn.Parameter(both[:2]), torch.nn.Parameter(both[2:])]
    optimizers = [torch.optim.SGD([part], lr=1.0) for part in parts]
    plan = _plan({"first": parts[0], "second": parts[1]})
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    other = snapshots.take(plan, changed_by=optimizers, name="one before")
    other.wait_until_copied()
    snapshot = snapshots.take(plan, changed_by=optimizers, name="it")
    for part in parts:
        part.grad = torch.ones_like(part)
    steps = [Waiting(optimizer.step) for optimizer in optimizers]
    # Its memory is that of the one before, which is not written yet.
    assert [step.still_waits() for step in steps] == [True, True]
    other.discard()
    content = Finishing(snapshot, tmp_path / "f").content()
    for step in steps:
        step.end()
    assert not any(tensor.any() for tensor in content.values())


@pytest.mark.parametrize("memory_blocks", [4, None], ids=["little", "enough"])
def test_what_no_optimizer_changes_is_as_it_was_in_the_call(
    tmp_path: Path, memory_blocks: int | None
) -> None:
    optimizer = CountingOptimizer(_parameters(4))
    frozen = torch.nn.Parameter(torch.zeros(BLOCK_BYTES // 4))
    norm = torch.nn.BatchNorm1d(3)
    random = torch.get_rng_state()
    others = {"frozen": frozen, "random": random, **dict(norm.named_buffers())}
    # Some before the optimizer's in the file, some within, some behind.
    plan = _plan({"first": torch.zeros(5), **_tensors_of(optimizer), **others})
    expected = {name: tensor.clone() for name, tensor in others.items()}
    memory = None if memory_blocks is None else memory_blocks * BLOCK_BYTES
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=memory)
    snapshot = snapshots.take(plan, changed_by=[optimizer], name="it")
    norm(torch.rand(8, 3))
    random.zero_()
    with torch.no_grad():
        frozen.fill_(7)
    content = Finishing(snapshot, tmp_path / "f").content()
    optimizer.step()
    for name, tensor in expected.items():
        assert torch.equal(content[name], tensor), name


def _closure(parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer) -> Any:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.stack([(parameter - 1).square().sum() for parameter in parameters]).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        return loss.detach()

    return closure


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
        (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
        (torch.optim.Adam, {"amsgrad": True, "foreach": False}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.LBFGS, {"max_iter": 2}),
        (torch.optim.Adafactor, {}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value.__name__,
)
def test_every_kind_of_optimizer_waits(
    tmp_path: Path, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    parameters = _parameters(2)
    optimizer = kind(parameters, lr=0.1, **options)  # type: ignore[call-arg]
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    closure = _closure(parameters, optimizer)
    for step in range(3):
        tensors = _tensors_of(optimizer)
        expected = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        snapshot = snapshots.take(_plan(tensors), changed_by=[optimizer], name=f"step {step}")
        finishing = Finishing(snapshot, tmp_path / f"{step}")
        optimizer.step(closure) if kind is torch.optim.LBFGS else (closure(), optimizer.step())
        content = finishing.content()
        assert content.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(content[name], tensor), (step, name)


def test_a_step_that_torch_compiled_waits(tmp_path: Path) -> None:
    parameters = _parameters(3)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(parameters, lr=1.0, maximize=True, foreach=True)
    plan = _plan(_tensors_of(optimizer))
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    step = torch.compile(optimizer.step, backend="eager")
    for number in range(3):
        snapshot = snapshots.take(plan, changed_by=[optimizer], name="it")
        finishing = Finishing(snapshot, tmp_path / f"{number}")
        step()
        for tensor in finishing.content().values():
            assert torch.equal(tensor, torch.full_like(tensor, number))


def test_a_step_that_a_scaler_skips_or_makes_leaves_the_snapshot_whole(tmp_path: Path) -> None:
    optimizer = CountingOptimizer(_parameters(4))
    plan = _plan(_tensors_of(optimizer))
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    scaler = torch.amp.GradScaler("cpu")
    parameters = optimizer.param_groups[0]["params"]
    for number, gradient in enumerate([float("inf"), 1.0]):
        snapshot = snapshots.take(plan, changed_by=[optimizer], name="it")
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, gradient)
        scaler.scale(torch.ones(()))
        finishing = Finishing(snapshot, tmp_path / f"{number}")
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.steps == number
        assert not any(tensor.any() for tensor in finishing.content().values())


def test_loading_a_model_waits(tmp_path: Path) -> None:
    model = torch.nn.Linear(BLOCK_BYTES // 4, 6, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = {name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()}
    expected = model.weight.detach().clone()
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    plan = _plan({"weight": model.weight})
    snapshot = snapshots.take(plan, changed_by=[model, optimizer], name="it")
    loading = Waiting(lambda: model.load_state_dict(saved))
    assert loading.still_waits()
    content = Finishing(snapshot, tmp_path / "f").content()
    loading.end()
    assert torch.equal(content["weight"], expected)
    assert torch.equal(model.weight.detach(), saved["weight"])
    wait_for_all()


def test_a_change_that_waits_for_nothing_is_noticed_and_named(tmp_path: Path) -> None:
    parameters = _parameters(4)
    optimizer = CountingOptimizer(parameters)
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    plan = _plan(_tensors_of(optimizer))
    snapshot = snapshots.take(plan, changed_by=[optimizer], name="the checkpoint of report 7")
    with torch.no_grad():
        parameters[-1].fill_(3)
    finishing = Finishing(snapshot, tmp_path / "f")
    with pytest.raises(
        CheckpointError, match=r"report 7: its.11 was changed in place .* by something"
    ):
        finishing.content()
    assert not (tmp_path / "f").exists()
    optimizer.step()
    snapshot = snapshots.take(plan, changed_by=[optimizer], name="the next")
    assert Finishing(snapshot, tmp_path / "f").content().keys() == _tensors_of(optimizer).keys()


def test_a_second_snapshot_is_taken_while_the_first_waits_to_be_written(tmp_path: Path) -> None:
    optimizer = CountingOptimizer(_parameters(4))
    plan = _plan(_tensors_of(optimizer))
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=9 * BLOCK_BYTES)
    first = snapshots.take(plan, changed_by=[optimizer], name="first")
    first.wait_until_copied()
    optimizer.step()
    second = snapshots.take(plan, changed_by=[optimizer], name="second")
    step = Waiting(optimizer.step)
    assert step.still_waits()
    for number, snapshot in enumerate([first, second]):
        for tensor in Finishing(snapshot, tmp_path / f"{number}").content().values():
            assert torch.equal(tensor, torch.full_like(tensor, number))
    step.end()


def test_memory_is_used_again_and_grows_with_the_state(tmp_path: Path) -> None:
    snapshots = Snapshots(timeout_s=TIMEOUT_S)
    slots = []
    for blocks in (2, 2, 6):
        optimizer = CountingOptimizer(_parameters(blocks))
        plan = _plan(_tensors_of(optimizer))
        snapshot = snapshots.take(plan, changed_by=[optimizer], name="it")
        finishing = Finishing(snapshot, tmp_path / "f")
        optimizer.step()
        assert not any(tensor.any() for tensor in finishing.content().values())
        assert snapshots._slots is not None
        slots.append(snapshots._slots)
    first, second, third = slots
    assert second is first
    assert third.blocks > first.blocks


def test_a_snapshot_that_nobody_wants_any_more_lets_the_step_go_on(tmp_path: Path) -> None:
    optimizer = CountingOptimizer(_parameters(4))
    plan = _plan(_tensors_of(optimizer))
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    for _ in range(3):
        snapshot = snapshots.take(plan, changed_by=[optimizer], name="it")
        step = Waiting(optimizer.step)
        assert step.still_waits()
        snapshot.discard()
        step.end()
    with pytest.raises(CheckpointError, match="it was discarded"):
        snapshot.finish(tmp_path / "f")


def test_a_file_that_cannot_be_written_lets_the_step_go_on(tmp_path: Path) -> None:
    optimizer = CountingOptimizer(_parameters(4))
    plan = _plan(_tensors_of(optimizer))
    snapshots = Snapshots(timeout_s=TIMEOUT_S, memory=4 * BLOCK_BYTES)
    snapshot = snapshots.take(plan, changed_by=[optimizer], name="it")
    step = Waiting(optimizer.step)
    assert step.still_waits()
    with pytest.raises(CheckpointError, match="could not be written: No such file"):
        snapshot.finish(tmp_path / "nowhere" / "f")
    step.end()
    snapshot = snapshots.take(plan, changed_by=[optimizer], name="it")
    for tensor in Finishing(snapshot, tmp_path / "f").content().values():
        assert torch.equal(tensor, torch.ones_like(tensor))


def test_a_step_that_waits_too_long_is_an_error_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    optimizer = CountingOptimizer(_parameters(4))
    snapshots = Snapshots(timeout_s=0.2, memory=4 * BLOCK_BYTES)
    plan = _plan(_tensors_of(optimizer))
    snapshot = snapshots.take(plan, changed_by=[optimizer], name="the checkpoint of report 7")
    with pytest.raises(CheckpointError, match=r"report 7: \d of 9 blocks .*sync_timeout"):
        optimizer.step()
    optimizer.step()
    with pytest.raises(CheckpointError, match="of 9 blocks"):
        snapshot.finish(tmp_path / "f")


def test_other_threads_keep_their_number_of_cores() -> None:
    before = torch.get_num_threads()
    Snapshots(timeout_s=TIMEOUT_S)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join(TIMEOUT_S)
    assert (torch.get_num_threads(), found) == (before, [before])


def test_a_call_does_not_wait_for_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = CountingOptimizer(_parameters(24))
    plan = _plan(_tensors_of(optimizer))
    snapshots = Snapshots(timeout_s=TIMEOUT_S)
    may_copy = threading.Event()
    copy = Snapshot.copy

    def copy_later(snapshot: Snapshot) -> None:
        assert may_copy.wait(TIMEOUT_S)
        copy(snapshot)

    monkeypatch.setattr(Snapshot, "copy", copy_later)
    snapshot = snapshots.take(plan, changed_by=[optimizer], name="it")
    assert not snapshot.is_copied()
    may_copy.set()
    # As much as there is memory for; nobody writes it.
    snapshot.wait_until_copied(blocks=1)
    snapshot.discard()
