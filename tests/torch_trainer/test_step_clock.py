"""Steps of real optimizers, whose collectives torch records."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

# A process of its own: the size of the record is read once.
SCRIPT = """
import json, os, sys
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch
from torch import distributed
from hpctrain.torch.step_times import StepClock
store = distributed.HashStore()
distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
weight = torch.zeros(1)
weight.grad = torch.ones(1)
kind = sys.argv[1]
cls = torch.optim.LBFGS if kind == "LBFGS" else torch.optim.SGD
optimizer, clock = cls([weight], lr=0.1), StepClock(1)
def closure():
    distributed.all_reduce(weight.grad)
    return weight.grad.sum()
for _ in range(5):
    if kind == "SGD":
        distributed.all_reduce(weight.grad)
        optimizer.step()
    elif kind == "by name":
        optimizer.step(closure=closure)
    else:
        optimizer.step(closure)
print(json.dumps([times.step for times in clock.read()]))
"""


@pytest.mark.parametrize(
    ("kind", "steps"),
    [("SGD", [2, 3, 4, 5]), ("closure", []), ("by name", []), ("LBFGS", [])],
)
def test_steps_are_timed_but_not_those_of_a_closure(kind: str, steps: list[int]) -> None:
    argv: list[Any] = [sys.executable, "-c", SCRIPT, kind]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == steps
