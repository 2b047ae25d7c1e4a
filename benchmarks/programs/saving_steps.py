"""Steps with saves behind them.

``python saving_steps.py FOLDER STATE_MIB ROUNDS ANSWER DEVICE ARM...``

In each round each arm saves once, by turns: steps without a save, then one save and steps until it
is done. Forward, backward and optimizer are real ones, on one thread, or on a GPU (DEVICE cuda).
"""

import json
import sys

from hpctrain import CheckpointConfig, RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer


def train(config):
    import ctypes
    import mmap
    import os
    import resource
    import shutil
    import threading
    import time
    from pathlib import Path
    from statistics import median

    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    import hpctrain
    import hpctrain.torch
    from hpctrain import CheckpointUploadMode

    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = hpctrain.torch.get_device()
    # A parameter of 4 MiB, and Adam's two averages.
    layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(config["state_mib"] // 12)]
    for layer in layers:
        # With the usual weights so many layers give denormal gradients, which take a CPU for long;
        # these stay as they are, as the optimizer's rate is small.
        torch.nn.init.normal_(layer.weight, std=1024**-0.5)
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-8, fused=True)
    inputs = torch.rand(config["batch"], 1024, device=device)
    waited, began = [], []
    optimizer.register_step_pre_hook(lambda *_: began.append(time.perf_counter()))

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize()

    def forward_and_backward():
        optimizer.zero_grad(set_to_none=False)
        model(inputs).square().mean().backward()

    def step():
        begin = time.perf_counter()
        forward_and_backward()
        optimizer.step()
        wait()
        return time.perf_counter() - begin

    step()

    def state():
        found = {f"model.{name}": value for name, value in model.state_dict().items()}
        for number, values in enumerate(optimizer.state.values()):
            found |= {f"optimizer.{number}.{key}": value for key, value in values.items()}
        return found

    size = sum(tensor.numel() * tensor.element_size() for tensor in state().values())
    folder = Path(config["folder"])

    def cpu_s():
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def machine_s():
        """Return the CPU seconds of all processes of this machine."""
        fields = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
        return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")

    class Reported:
        """hpctrain.torch.report_state."""

        def __init__(self, mode):
            self.mode = CheckpointUploadMode[mode]

        def save(self):
            hpctrain.torch.report_state({}, model=model, optimizer=optimizer, mode=self.mode)
            storage = hpctrain.get_context().get_storage() / "checkpoints"
            (newest,) = [hpctrain.worker.context.active_worker("").session.reports]
            return (storage / f"{newest:06d}").exists

        def clean(self):
            pass

    class Dcp:
        """torch.distributed.checkpoint.async_save; its memory is used again, too."""

        def __init__(self):
            self.stager = DefaultStager(StagingOptions(False, False, False, False))
            self.path = folder / "dcp"

        def save(self):
            writer = dcp.FileSystemWriter(self.path, sync_files=True)
            future = dcp.async_save(state(), storage_writer=writer, async_stager=self.stager)
            upload = getattr(future, "upload_completion", future)
            return lambda: upload.done() and upload.result() is not None

        def clean(self):
            shutil.rmtree(self.path)

    class TorchSave:
        """A copy, and torch.save with fsync in a thread."""

        path = folder / "state.pt"

        def write(self, copy):
            with open(self.path, "wb") as file:
                torch.save(copy, file)
                file.flush()
                os.fsync(file.fileno())

        def save(self):
            copy = {name: tensor.to("cpu", copy=True) for name, tensor in state().items()}
            thread = threading.Thread(target=self.write, args=(copy,))
            thread.start()
            return lambda: not thread.is_alive()

        def clean(self):
            self.path.unlink()

    makers = {
        "ours": lambda: Reported("ASYNC"),
        "ours, SYNC": lambda: Reported("SYNC"),
        "DCP async": Dcp,
        "torch.save in a thread": TorchSave,
    }

    def measure(arm):
        others_s, started = machine_s() - cpu_s(), time.perf_counter()
        usual_cpu_s, usual_s = cpu_s(), [step() for _ in range(config["usual_steps"])]
        usual_cpu_s = (cpu_s() - usual_cpu_s) / len(usual_s)
        cpu_before, begin = cpu_s(), time.perf_counter()
        is_done = arm.save()
        call_s = time.perf_counter() - begin
        taken_s, done_s = [], call_s if is_done() else None
        while done_s is None or len(taken_s) < config["steps"]:
            taken_s.append(step())
            if done_s is None and is_done():
                done_s = time.perf_counter() - begin
        end = time.perf_counter()
        others_s = machine_s() - cpu_s() - others_s
        waits = max(0.0, waited[-len(taken_s)] if waited else 0.0)
        return {
            "call_s": call_s,
            "gate_s": waits,
            "all_s": end - begin,
            "cpu_s": cpu_s() - cpu_before - usual_cpu_s * len(taken_s),
            "done_s": done_s,
            "others": others_s / (end - started),
            "usual_s": usual_s,
            "steps_s": taken_s,
        }

    def memory(field):
        lines = Path("/proc/self/status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith(field)]
        return int(line.split()[1]) * 1024

    def copy_once(target):
        begin = time.perf_counter()
        position = target
        for tensor in state().values():
            if device.type == "cuda":
                pinned[position - target :][: tensor.nbytes].copy_(
                    tensor.reshape(-1).view(torch.uint8), non_blocking=True
                )
            else:
                ctypes.memmove(position, tensor.data_ptr(), tensor.nbytes)
            position += tensor.nbytes
        wait()
        return time.perf_counter() - begin

    answer = {"state_bytes": size, "rounds": [], "arms": config["arms"]}
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    arms = {name: makers[name]() for name in config["arms"]}
    if device.type == "cuda":
        pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    mapped = mmap.mmap(-1, size)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    target = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    for number in range(config["rounds"] + 1):
        found = {}
        for name, arm in arms.items():
            found[name] = measure(arm)
            # After the hook of a snapshot, which was registered at the first one.
            if not waited and name == "ours":
                optimizer.register_step_pre_hook(
                    lambda *_: waited.append(time.perf_counter() - began[-1])
                )
                waited.append(0.0)
            arm.clean()
        # Of all arms: a few steps differ by more than a save takes.
        usual = median(step for taken in found.values() for step in taken["usual_s"])
        for taken in found.values():
            taken["added_s"] = taken["all_s"] - usual * len(taken["steps_s"])
        if number == 0 and len(arms) == 1:
            # Nothing but ours has run.
            answer["peak_of_state"] = (memory("VmHWM") - before) / size
        found["copy_s"] = sorted(copy_once(target) for _ in range(3))[1]
        if number > 0:
            answer["rounds"].append(found)
    Path(config["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    folder, state_mib, rounds, answer, device, *arms = sys.argv[1:]
    TorchTrainer(
        train,
        train_loop_config={
            "folder": folder,
            "state_mib": int(state_mib),
            "rounds": int(rounds),
            "answer": answer,
            "arms": arms,
            "batch": 32,
            "usual_steps": 3,
            "steps": 6,
        },
        scaling_config=ScalingConfig(num_workers=1, use_gpu=device == "cuda"),
        run_config=RunConfig(
            name="run",
            storage_path=folder,
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            verbose=0,
        ),
    ).fit()
