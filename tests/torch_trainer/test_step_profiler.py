"""torch's profiler over some steps, started from another thread."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpctrain.torch.step_profiler import TorchStepProfiler


@pytest.fixture
def profiler() -> Iterator[TorchStepProfiler]:
    made = TorchStepProfiler()
    yield made
    made.close()


class Steps:
    """A model that makes steps."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 4)
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.1) for _ in range(2)]

    def make(self, number: int) -> None:
        for _ in range(number):
            self.model(torch.ones(2, 4)).sum().backward()
            for optimizer in self.optimizers:
                optimizer.step()


def steps_in(path: Any) -> int:
    assert isinstance(path, Path), path
    events = json.loads(path.read_bytes())["traceEvents"]
    path.unlink()
    return sum(event["name"] == "Optimizer.step#SGD.step" for event in events)


def test_steps_are_those_of_one_optimizer_and_a_profile_can_be_asked_for_again(
    profiler: TorchStepProfiler,
) -> None:
    steps, got = Steps(), queue.Queue[Any]()
    for number in (3, 1):
        profiler.start(number, until=time.time() + 60, finish=got.put)
        steps.make(number + 4)
        # Each of the two optimizers makes one; the profile begins after that of the first.
        assert steps_in(got.get(timeout=60)) == 2 * number


def test_a_profile_that_the_script_runs_itself_is_left_alone(profiler: TorchStepProfiler) -> None:
    steps, got = Steps(), queue.Queue[Any]()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        profiler.start(2, until=time.time() + 60, finish=got.put)
        steps.make(4)
    assert got.get(timeout=60) == "its training function runs torch's profiler itself"
    assert sum(event.name == "Optimizer.step#SGD.step" for event in own.events()) == 8


def test_a_function_that_returns_first_leaves_what_there_is_or_the_reason() -> None:
    steps = Steps()
    for made, number in ((0, None), (3, 4)):
        profiler, got = TorchStepProfiler(), queue.Queue[Any]()
        profiler.start(100, until=time.time() + 60, finish=got.put)
        steps.make(made)
        profiler.close()
        answer = got.get(timeout=60)
        if number is None:
            assert answer == "its training function returned first"
        else:
            assert steps_in(answer) >= number
        profiler.close()
    steps.make(1)


def test_a_profile_for_which_nobody_waits_any_more_ends_with_the_steps_that_it_has(
    profiler: TorchStepProfiler,
) -> None:
    steps, got = Steps(), queue.Queue[Any]()
    profiler.start(10**6, until=time.time() - 1, finish=got.put)
    steps.make(1)
    assert got.get(timeout=60) == "no step in time"
    profiler.start(10**6, until=time.time() + 0.5, finish=got.put)
    while got.empty():
        steps.make(1)
    assert 2 <= steps_in(got.get(timeout=60)) < 10**6
