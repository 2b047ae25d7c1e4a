"""What it costs to watch for slow nodes, and whether any is named that is not slow.

::

    python benchmarks/slow_nodes.py                    # 20,000 steps of about 1.5 ms on 2 ranks
    python benchmarks/slow_nodes.py --ranks 4 --ms 1   # more ranks than there are cores

Blocks of steps take turns, with the watch and without, A B A B, in one run: what else the machine
does hits both. The difference of two blocks is mostly noise of the machine, so what the watch takes
of a rank is measured by itself, too: the CPU time of each reading, and that of a note a step.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from statistics import median
from timeit import timeit
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Make steps of some work each; return how long blocks of them took on rank 0."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from hpctrain.torch import prepare_model
    from hpctrain.worker import step_times

    model = prepare_model(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch, matrix = torch.ones(8, 64), torch.ones(128, 128)
    read = step_times._read
    clock = read.__self__
    readings: list[float] = []

    def timed() -> Any:
        began_at = time.thread_time()
        found = read()
        readings.append(time.thread_time() - began_at)
        return found

    def step(rounds: int) -> None:
        for _ in range(rounds):
            torch.mm(matrix, matrix)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    begin = time.perf_counter()
    for _ in range(100):
        torch.mm(matrix, matrix)
    rounds = torch.tensor([config["ms"] * 1e-3 / ((time.perf_counter() - begin) / 100)])
    torch.distributed.broadcast(rounds, 0)
    clock.close()
    blocks: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(config["blocks"]):
        how = ("with", "without")[number % 2]
        if how == "with":
            clock._hook = register_optimizer_step_pre_hook(clock._before_step)
            step_times.time_steps_with(timed)
        torch.distributed.barrier()
        begin = time.perf_counter()
        for _ in range(config["steps"]):
            step(int(rounds))
        blocks[how].append((time.perf_counter() - begin) / config["steps"])
        if how == "with":
            step_times.time_steps_with(None)
            clock.close()
    note_s = timeit(lambda: clock._before_step(optimizer, (), {}), number=100_000) / 100_000
    return {**blocks, "readings_s": readings, "note_s": note_s}


def main() -> None:
    """Measure, and print."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ms", type=float, default=1.0, help="work of a step")
    parser.add_argument("--steps", type=int, default=2500, help="of a block")
    parser.add_argument("--blocks", type=int, default=8)
    options = parser.parse_args()
    from hpctrain import RunConfig, ScalingConfig
    from hpctrain.torch import TorchTrainer

    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as storage:
        result = TorchTrainer(
            train,
            train_loop_config=vars(options),
            scaling_config=ScalingConfig(num_workers=options.ranks),
            run_config=RunConfig(storage_path=storage, name="slow-nodes", verbose=0),
        ).fit()
        found = result.return_value
        events = map(json.loads, Path(result.path, "ledger.jsonl").read_text().splitlines())
        named = [event for event in events if event["event"] == "node-slow"]
    pairs = list(zip(found["with"], found["without"], strict=False))
    steps = options.steps * len(found["with"])
    watched_s = sum(found["with"]) * options.steps
    share = sum(found["readings_s"]) / watched_s
    print(f"{options.ranks} ranks, {steps} steps that were watched, {watched_s:.0f} s")
    print(
        f"step: {median(found['with']) * 1e3:.3f} ms with the watch, "
        f"{median(found['without']) * 1e3:.3f} ms without; "
        f"ratio {median(a / b for a, b in pairs):.4f} "
        f"({', '.join(f'{a / b:.3f}' for a, b in pairs)})"
    )
    print(
        f"readings: {len(found['readings_s'])}, "
        f"{median(found['readings_s'] or [0]) * 1e3:.2f} ms each, {share:.3%} of the time"
    )
    print(
        f"a note: {found['note_s'] * 1e6:.2f} us, {found['note_s'] / median(found['with']):.3%} "
        f"of a step"
    )
    print(f"named: {len(named)}")
    for event in named:
        print(f"  {event}")


if __name__ == "__main__":
    main()
