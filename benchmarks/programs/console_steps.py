"""Steps of an optimizer: ``python console_steps.py HOW RANKS BYTES BLOCKS ANSWER``.

``on`` is all that shows a run while it goes: the skew of ranks that is read from torch's flight
recorder, live.json, the file for Prometheus, and a terminal with ``hpctrain top``. ``watched`` has
the skew alone. ``off`` has none of these; torch records as it does by default. ``unrecorded`` is
``off`` without torch's recorder.

The answer has the mean wall and CPU time of a step for each ``block`` of steps, and what rank 0
takes for the skew: the CPU time of a ``note`` a step, and of each of the ``readings``.

The ranks share one CPU, and the executor and ``hpctrain top`` have another: they would take the
caches of the ranks, as they do on no machine that has more CPUs than ranks.
"""

import json
import math
import os
import pty
import subprocess
import sys
import threading
import time
import timeit

STEPS = 100
NOTES = 20_000
# Of torch 2.13, where the variable is not set.
TORCHS_BUFFER_SIZE = "2000"


def measure(num_bytes, blocks):
    """Return the mean wall and CPU time of a step, for each block of steps."""
    import hashlib
    from time import perf_counter, process_time

    import torch
    from torch import distributed

    import hpctrain

    content, weight = bytes(num_bytes), torch.zeros(1)
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def block():
        wall, cpu = perf_counter(), process_time()
        for _ in range(STEPS):
            hashlib.sha256(content).digest()
            distributed.all_reduce(weight.grad)
            optimizer.step()
            if hpctrain.should_stop():
                raise SystemExit("nobody asked to stop")
        taken = (perf_counter() - wall) / STEPS, (process_time() - cpu) / STEPS
        hpctrain.report({"step_s": taken[0]})
        return taken

    block()
    readings = count_readings()
    return {
        "block": [block() for _ in range(blocks)],
        "readings": readings,
        "note": note_s(optimizer),
    }


def count_readings():
    """Return a list that gets the CPU time of each reading of the flight recorder."""
    from hpctrain.control.link import Link

    post, readings = Link.post, []

    def counted(link, op, *body, **fields):
        if op == "step-times":
            readings.append(fields["cost_us"] / 1e6)
        return post(link, op, *body, **fields)

    Link.post = counted
    return readings


def note_s(optimizer):
    """Return the CPU time that the hooks take for a step."""
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    hooks = list(_global_optimizer_pre_hooks.values())

    def note():
        for hook in hooks:
            hook(optimizer, (optimizer,), {})

    times = timeit.repeat(note, timer=time.thread_time, repeat=5, number=NOTES)
    return min(times) / NOTES


def pin(process, cpu):
    """Keep all threads that a process has on one CPU, and those that they start."""
    for thread in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(thread), {cpu})


def train(config):
    pin("self", config["cpus"][0])
    import hpctrain

    if hpctrain.get_context().get_world_rank() == 0:
        for process in config["others"]:
            pin(process, config["cpus"][-1])
    if not config["is_watched"]:
        from torch.optim import optimizer

        from hpctrain.worker.step_times import time_steps_with

        time_steps_with(None)
        optimizer._global_optimizer_pre_hooks.clear()
    return measure(config["bytes"], config["blocks"])


def watch():
    """Show the run in a terminal that somebody reads; return the process and the terminal."""
    terminal, own_end = pty.openpty()
    command = [sys.executable, "-m", "hpctrain.cli", "top", "run"]
    top = subprocess.Popen(command, stdin=own_end, stdout=own_end, stderr=own_end)
    os.close(own_end)

    def read():
        try:
            while os.read(terminal, 65536):
                pass
        except OSError:
            # Its last process has ended.
            pass

    threading.Thread(target=read, daemon=True).start()
    return top


if __name__ == "__main__":
    how, ranks, num_bytes, blocks = sys.argv[1], *map(int, sys.argv[2:5])
    callbacks = []
    if how != "on":
        os.environ["TORCH_FR_BUFFER_SIZE"] = "0" if how == "unrecorded" else TORCHS_BUFFER_SIZE
        from hpctrain.execute import live_record

        live_record.INTERVAL_S = math.inf
    else:
        from hpctrain.callbacks import PrometheusCallback

        callbacks.append(PrometheusCallback("metrics.prom"))
    from hpctrain import RunConfig, ScalingConfig
    from hpctrain.torch import TorchTrainer

    top = watch() if how == "on" else None
    trainer = TorchTrainer(
        train,
        train_loop_config={
            "bytes": num_bytes,
            "blocks": blocks,
            "is_watched": how in ("on", "watched"),
            "cpus": sorted(os.sched_getaffinity(0)),
            "others": [os.getpid(), *([top.pid] if top else [])],
        },
        scaling_config=ScalingConfig(num_workers=ranks),
        run_config=RunConfig(name="run", storage_path=".", verbose=0, callbacks=callbacks),
    )
    try:
        answer = trainer.fit().return_value
    finally:
        if top is not None:
            top.terminate()
            top.wait(timeout=30)
    with open(sys.argv[5], "w") as file:
        json.dump(answer, file)
