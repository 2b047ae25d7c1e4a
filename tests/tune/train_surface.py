"""Train a perceptron on digits with each configuration of a grid, as ``recorded/surface.json``.

Run it with scikit-learn and torch: ``python tests/tune/train_surface.py``. It takes a few minutes.
"""

from __future__ import annotations

import itertools
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import sklearn
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

EPOCHS = 27
GRID: dict[str, list[float]] = {
    "lr": [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
    "momentum": [0.0, 0.9],
    "width": [8, 64],
    "batch_size": [16, 64, 256],
    "weight_decay": [0.0, 0.001, 0.01],
}


def train(config: dict[str, Any], tensors: list[torch.Tensor]) -> list[tuple[Any, int, int]]:
    """Return the validation loss, the number of right answers and CPU microseconds by epoch."""
    x, x_held, y, y_held = tensors
    torch.manual_seed(0)
    width, size = config["width"], config["batch_size"]
    model = torch.nn.Sequential(
        torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)
    )
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config["lr"],
        momentum=config["momentum"],
        weight_decay=config["weight_decay"],
    )
    epochs: list[tuple[Any, int, int]] = []
    for _ in range(EPOCHS):
        # Other processes of the machine do not count.
        start = time.process_time()
        for chosen in torch.randperm(len(x)).split(size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
        with torch.no_grad():
            out = model(x_held)
            loss = torch.nn.functional.cross_entropy(out, y_held).item()
            correct = int((out.argmax(1) == y_held).sum())
        spent = time.process_time() - start
        epochs.append((float(f"{loss:.5g}") if math.isfinite(loss) else None, correct, spent))
    return [(loss, correct, round(1e6 * spent)) for loss, correct, spent in epochs]


def main() -> None:
    """Write the file."""
    torch.set_num_threads(1)
    digits = load_digits()
    split = train_test_split(
        digits.data / 16, digits.target, test_size=360, random_state=0, stratify=digits.target
    )
    x, x_held, y, y_held = map(torch.as_tensor, split)
    tensors = [x.float(), x_held.float(), y, y_held]
    configs = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    # Once before, for what the first one takes longer.
    train(configs[0], tensors)
    found = [train(config, tensors) for config in configs]
    loss, correct, microseconds = (
        [[epoch[which] for epoch in epochs] for epochs in found] for which in range(3)
    )
    surface = {
        "made_with": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "scikit-learn": sklearn.__version__,
            "machine": platform.machine(),
        },
        "held_out": len(y_held),
        "grid": GRID,
        "loss": loss,
        "correct": correct,
        "microseconds": microseconds,
    }
    path = Path(__file__).parent / "recorded" / "surface.json"
    path.write_text(json.dumps(surface, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
