"""A user's mistake in the training function is shown once, in a few lines, with its place."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

CONFIG_ERROR, FAILED = 2, 4

pytestmark = pytest.mark.mpi


def assert_failed(outcome: Any, text: str, *, out: str = "") -> None:
    outcome.assert_is(text, out=out, status=FAILED)


def assert_runs(outcome: Any, text: str, *, out: str = "report 1  loss=1\n") -> None:
    outcome.assert_is(text, out=out, status=0)


def where(rank: int, checkpoint: str = "none", resumes: str = "fit() again") -> str:
    return (
        f"  Log: DIR/runs/run/logs/1/rank-0000{rank}.out   Last complete checkpoint: {checkpoint}\n"
        f"  Run: DIR/runs/run   Next: fix the cause, then {resumes}.\n"
    )


EXCEPTION = """\
def train(config):
    rank = hpctrain.get_context().get_world_rank()
    hpctrain.report({"loss": 1.0}, hpctrain.Checkpoint.from_dict({"step": 1}))
    if rank == config["rank"]:
        print(config["learning_rate"])
    hpctrain.collective.barrier()

import hpctrain.collective
if __name__ == "__main__":
    fit(train, config={"rank": RANK, "lr": 0.1}, verbose=VERBOSE)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_of_a_rank(run_script: Any, rank: int) -> None:
    # All ranks are shown, and the traceback is in none of what they print.
    script = EXCEPTION.replace("RANK", str(rank)).replace("VERBOSE", "2")
    assert_failed(
        run_script(script),
        f"""\
hpctrain.errors.WorkerError: rank {rank} of 2 on HOST failed after report 1: KeyError: \
'learning_rate'
"""
        + where(
            rank, "DIR/runs/run/checkpoints/000001", "fit() with name='run' resumes from 000001"
        )
        + """\

Traceback (most recent call last):
  File "DIR/train.py", line 15, in train
    print(config["learning_rate"])
KeyError: 'learning_rate'
""",
        out="report 1  loss=1\n",
    )


def test_a_tensor_among_metrics(run_script: Any) -> None:
    pytest.importorskip("torch")
    outcome = run_script(
        """\
        def train():
            import torch
            hpctrain.report({"loss": torch.tensor(1.0)})

        fit(train, workers=1)
        """
    )
    reason = (
        "ConfigError: report(): metrics hold tensor(1.) of type torch.Tensor. Metrics are numbers, "
        "strings, lists and dicts: use .item() or .tolist()."
    )
    assert_failed(
        outcome,
        f"hpctrain.errors.WorkerError: rank 0 of 1 on HOST failed in phase training: {reason}\n"
        + where(0)
        + f"""\

Traceback (most recent call last):
  File "DIR/train.py", line 13, in train
    hpctrain.report({{"loss": torch.tensor(1.0)}})
hpctrain.errors.{reason}
""",
    )


def test_report_on_rank_0_only(run_script: Any) -> None:
    outcome = run_script(
        """\
        def train():
            if hpctrain.get_context().get_world_rank() == 0:
                hpctrain.report({"loss": 1.0})

        fit(train)
        """
    )
    assert_failed(
        outcome,
        """\
hpctrain.errors.TrainingFailedError: rank 1 returned after 0 reports, but rank 0 made 1. Every \
rank must call report() equally often, with or without a checkpoint: move it out of conditions \
such as 'if rank == 0'.
  Run: DIR/runs/run   Next: fix the cause, then fit() again.
""",
        out="report 1  loss=1\n",
    )


def test_a_barrier_on_rank_0_only(run_script: Any) -> None:
    outcome = run_script(
        """\
        import hpctrain.collective

        def train():
            if hpctrain.get_context().get_world_rank() == 0:
                hpctrain.collective.barrier()

        fit(train)
        """
    )
    assert_failed(
        outcome,
        """\
hpctrain.errors.TrainingFailedError: rank 1 returned, but rank 0 waits for all ranks in barrier(). \
Every rank must make the same calls in the same order: move it out of conditions such as \
'if rank == 0'.
  Run: DIR/runs/run   Next: fix the cause, then fit() again.
""",
    )


def test_a_module_that_workers_lack(run_script: Any) -> None:
    outcome = run_script(
        """\
        def train():
            import no_such_module

        fit(train, workers=1, failure_config=FailureConfig(max_failures=3))
        """
    )
    reason = "ModuleNotFoundError: No module named 'no_such_module'"
    log, run = where(0).splitlines()
    assert_failed(
        outcome,
        f"""\
hpctrain.errors.WorkerError: rank 0 of 1 on HOST failed in phase training: {reason}
{log}
  PYTHON has no no_such_module. Of a package: PYTHON -m pip install no_such_module (some have \
another name there), or the site's `module load` in SlurmConfig(setup=[...]). A file of your own: \
put it beside the script.
{run}

Traceback (most recent call last):
  File "DIR/train.py", line 12, in train
    import no_such_module
{reason}
""",
    )


def test_a_device_that_workers_lack(run_script: Any) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this build of torch has other words, or a GPU")
    outcome = run_script(
        """\
        def train():
            import torch
            torch.nn.Linear(1, 1).to("cuda")

        fit(train, workers=1)
        """
    )
    reason = "AssertionError: Torch not compiled with CUDA enabled"
    log, run = where(0).splitlines()
    folded = re.search(r"\n  \[\d+ frames of installed packages\]\n.*\n.*\n", outcome.err)
    assert folded is not None, outcome.err
    assert "/torch/" in folded[0]
    assert_failed(
        outcome,
        f"""\
hpctrain.errors.WorkerError: rank 0 of 1 on HOST failed in phase training: {reason}
{log}
  This rank has no GPU. ScalingConfig(use_gpu=True) gives each rank one, and \
hpctrain.torch.get_device() returns the device of the rank, GPU or CPU, for model.to().
{run}

Traceback (most recent call last):
  File "DIR/train.py", line 13, in train
    torch.nn.Linear(1, 1).to("cuda"){folded[0]}{reason}
""",
    )


def test_a_crash_in_compiled_code(run_script: Any) -> None:
    outcome = run_script(
        """\
        def read():
            import ctypes
            ctypes.string_at(0)

        def train():
            read()

        fit(train, workers=1)
        """
    )
    assert_failed(
        outcome,
        """\
hpctrain.errors.WorkerError: rank 0 of 1 on HOST failed without an exception: Segmentation fault, \
a crash in compiled code; its log ends with the Python stack
"""
        + where(0)
        + """\

Current thread 0x... (most recent call first):
  File "LIB/ctypes/__init__.py", line N in string_at
  File "DIR/train.py", line 13 in read
  File "DIR/train.py", line 16 in train
""",
    )


def test_a_kill(run_script: Any) -> None:
    outcome = run_script(
        """\
        def train():
            import os, signal, time
            if hpctrain.get_context().get_world_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)

        fit(train)
        """
    )
    # Whether the kernel counts what it kills for memory depends on the machine's cgroups.
    by_whom = (
        ", and not for want of memory: by a person or a program"
        if "not for want" in outcome.err
        else ": as a rule the kernel, out of memory"
    )
    assert_failed(
        outcome,
        f"""\
hpctrain.errors.WorkerError: rank 1 of 2 on HOST failed without an exception: killed by \
SIGKILL{by_whom}
"""
        + where(1),
    )


def test_a_hang(run_script: Any) -> None:
    outcome = run_script(
        """\
        def train():
            import time
            if hpctrain.get_context().get_world_rank() == 1:
                time.sleep(600)
            hpctrain.report({"loss": 1.0})
            time.sleep(600)

        fit(train, failure_config=FailureConfig(hang_timeout_s=1.0))
        """
    )
    assert_failed(
        outcome,
        """\
hpctrain.errors.WorkerHangError: rank 1 of 2 on HOST hangs in phase training, after report 0: no \
progress for N s, since TIME
  1 other rank in phase training, after report 1
  Limit of the time without progress: FailureConfig(hang_timeout_s=1)
  Stacks: DIR/runs/run/stacks/1   Last complete checkpoint: none
  Run: DIR/runs/run   Next: fix the cause, then fit() again.

Thread 0x... (most recent call first):
  File "DIR/train.py", line 14 in train
""",
        out="report 1  loss=1\n",
    )


def test_a_disk_that_is_full(run_script: Any, small_filesystem: Any, tmp_path: Path) -> None:
    small_filesystem(tmp_path / "runs", "32M")
    outcome = run_script(
        """\
        def train():
            for step in range(2):
                value = b"x" * (100_000 if step == 0 else 40_000_000)
                hpctrain.report({"step": step}, hpctrain.Checkpoint.from_dict({"x": value}))

        fit(train, workers=1, verbose=0)
        """
    )
    saved = "DIR/runs/run/checkpoints/000001"
    reason = (
        "CheckpointError: rank 0 could not write its part of the checkpoint of report 2 to "
        "DIR/runs/run/checkpoints/.tmp-1-000002: No space left on device. The last complete "
        f"checkpoint is {saved}; free space, or choose another storage_path."
    )
    assert_failed(
        outcome,
        f"hpctrain.errors.WorkerError: rank 0 of 1 on HOST failed after report 2: {reason}\n"
        + where(0, saved, "fit() with name='run' resumes from 000001")
        + f"""\

Traceback (most recent call last):
  File "DIR/train.py", line 14, in train
    hpctrain.report({{"step": step}}, hpctrain.Checkpoint.from_dict({{"x": value}}))
hpctrain.errors.{reason}
""",
    )


# What is no failure at all.


def test_a_callback_that_raises(run_script: Any) -> None:
    outcome = run_script(
        """\
        class Plot(hpctrain.UserCallback):
            def after_report(self, *args):
                raise ValueError("no display")

        def train():
            hpctrain.report({"loss": 1.0})

        fit(train, callbacks=[Plot()])
        """
    )
    assert_runs(outcome, "hpctrain: callback failed: Plot.after_report: ValueError: no display\n")


def test_more_ranks_than_cores(run_script: Any) -> None:
    outcome = run_script(
        """\
        def train():
            hpctrain.report({"loss": 1.0})

        fit(train, workers=3)
        """,
        command=["taskset", "--cpu-list", "0", sys.executable],
    )
    assert_runs(
        outcome,
        "hpctrain: warning: 3 workers with 1 CPU each share the 1 CPU of this machine, and slow "
        "each other down. num_workers=1 is what fits.\n",
    )


def test_an_epoch_that_is_not_set(run_script: Any) -> None:
    pytest.importorskip("torch")
    outcome = run_script(
        """\
        def train():
            from torch.utils.data import DataLoader
            from hpctrain.torch import prepare_data_loader
            loader = prepare_data_loader(DataLoader(range(12), batch_size=12, shuffle=True))
            epochs = [next(iter(loader)).tolist() for _ in range(2)]
            epochs = [batch.tolist() for _ in range(2) for batch in loader]
            hpctrain.report({"equal": epochs[0] == epochs[1], "all": len(set(epochs[0]))})

        fit(train, workers=1)
        """
    )
    assert_runs(outcome, "", out="report 1  equal=False  all=12\n")


def test_no_guard_around_main(run_script: Any) -> None:
    outcome = run_script(
        """\
        def train():
            hpctrain.report({"loss": 1.0})

        fit(train)
        print("once")
        """
    )
    assert_runs(outcome, "", out="report 1  loss=1\nonce\n")


@pytest.mark.parametrize(
    ("argument", "what", "name"),
    [
        ('stop={"lss": 0.1}', "RunConfig(stop={'lss': ...})", "lss"),
        (
            'checkpoint_config=CheckpointConfig(checkpoint_score_attribute="los")',
            "CheckpointConfig(checkpoint_score_attribute='los')",
            "los",
        ),
    ],
)
def test_a_metric_that_reports_lack(run_script: Any, argument: str, what: str, name: str) -> None:
    outcome = run_script(
        f"""\
        def train():
            hpctrain.report({{"loss": 1.0}}, hpctrain.Checkpoint.from_dict({{"step": 1}}))

        fit(train, workers=1, verbose=0, {argument})
        """
    )
    outcome.assert_is(
        f"""\
Traceback (most recent call last):
  File "DIR/train.py", line 14, in <module>
    fit(train, workers=1, verbose=0, {argument})
  File "DIR/train.py", line 9, in fit
    return DataParallelTrainer(train, **options).fit()
hpctrain.errors.ConfigError: {what}: report 1 has no metric '{name}'. The metrics are loss. Did \
you mean 'loss'?
Mend the name and call fit() again, which resumes the run. A metric that is measured later is \
reported as None until then.
""",
        status=CONFIG_ERROR,
    )


NESTED = """\
def inner(config):
    hpctrain.report({"loss": 1.0})

def train(config):
    if hpctrain.get_context().get_world_rank() == 0:
        fit(inner)
    hpctrain.report({"loss": 1.0})

if __name__ == "__main__":
    fit(train)
"""


def test_a_fit_within_a_training_function_on_rank_0_only(run_script: Any) -> None:
    outcome = run_script(NESTED)
    assert outcome.status == FAILED, outcome.err
    assert (
        "ConfigError: fit() was called inside a training function, by rank 0 of 2. A rank starts "
        "no ranks of its own. Call it before or after the fit() that this function runs in"
    ) in outcome.err
