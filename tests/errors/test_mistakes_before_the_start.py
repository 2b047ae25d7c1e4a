"""A user's mistake that can be found before ranks start is found then, in a few lines."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

CONFIG_ERROR = 2
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))


def assert_refused(outcome: Any, text: str) -> None:
    outcome.assert_is(text, status=CONFIG_ERROR)


def test_two_arguments(run_script: Any) -> None:
    outcome = run_script(
        """\
        def train(model, config):
            pass

        DataParallelTrainer(train)
        """
    )
    assert_refused(
        outcome,
        """\
Traceback (most recent call last):
  File "DIR/train.py", line 14, in <module>
    DataParallelTrainer(train)
hpctrain.errors.ConfigError: train(model, config) takes 2 arguments. A training function takes \
none, or one: the train_loop_config. Put the rest into train_loop_config.
""",
    )


def test_a_closure_that_cannot_be_pickled(run_script: Any) -> None:
    outcome = run_script(
        """\
        import threading

        def make():
            lock = threading.Lock()
            return lambda: lock.acquire()

        fit(make())
        """
    )
    assert_refused(
        outcome,
        """\
Traceback (most recent call last):
  File "DIR/train.py", line 17, in <module>
    fit(make())
  File "DIR/train.py", line 9, in fit
    return DataParallelTrainer(train, **options).fit()
hpctrain.errors.NotSerializableError: the training function cannot be sent to the workers, because \
it was found to be non-serializable: TypeError: cannot pickle '_thread.lock' object. At fault: \
captured variable 'lock'. Create it inside the training function instead.
""",
    )


def test_a_config_that_cannot_be_pickled(run_script: Any) -> None:
    outcome = run_script(
        """\
        import threading

        def train(config):
            pass

        fit(train, config={"lr": 0.1, "lock": threading.Lock()})
        """
    )
    assert_refused(
        outcome,
        """\
Traceback (most recent call last):
  File "DIR/train.py", line 16, in <module>
    fit(train, config={"lr": 0.1, "lock": threading.Lock()})
  File "DIR/train.py", line 9, in fit
    return DataParallelTrainer(train, **options).fit()
hpctrain.errors.NotSerializableError: the training function cannot be sent to the workers, because \
it was found to be non-serializable: TypeError: cannot pickle '_thread.lock' object. At fault: \
train_loop_config['lock']. Create it inside the training function instead.
""",
    )


GPU_SCRIPT = """\
def train():
    pass

trainer = DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=2, use_gpu=True))
trainer.fit()
"""


@pytest.mark.parametrize(
    ("visible", "shown", "way_out"),
    [
        ("", "shows 0 (CUDA_VISIBLE_DEVICES=)", "Set use_gpu=False"),
        ("0", "shows 1 (CUDA_VISIBLE_DEVICES=0)", "Use num_workers=1"),
    ],
)
def test_more_gpus_than_there_are(run_script: Any, visible: str, shown: str, way_out: str) -> None:
    assert_refused(
        run_script(GPU_SCRIPT, environment={"CUDA_VISIBLE_DEVICES": visible}),
        f"""\
Traceback (most recent call last):
  File "DIR/train.py", line 15, in <module>
    trainer.fit()
hpctrain.errors.ConfigError: num_workers=2 with use_gpu=True needs 2 GPUs on this machine, which \
{shown}. {way_out}, or run it where there are more: hpctrain submit, on the login node of a cluster.
""",
    )


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("visible", "shown", "way_out"),
    [
        ("", "see 0 (CUDA_VISIBLE_DEVICES=)", "Set use_gpu=False"),
        ("0", "see 1 (CUDA_VISIBLE_DEVICES=0)", "Start 1 of them there"),
    ],
)
def test_ranks_of_mpiexec_that_would_share_a_gpu(
    run_script: Any, visible: str, shown: str, way_out: str
) -> None:
    assert_refused(
        run_script(
            GPU_SCRIPT,
            command=[MPIEXEC, "-n", "2", sys.executable],
            environment={"CUDA_VISIBLE_DEVICES": visible},
        ),
        f"""\
Traceback (most recent call last):
  File "DIR/train.py", line 15, in <module>
    trainer.fit()
hpctrain.errors.ConfigError: num_workers=2 with use_gpu=True: 2 ranks on HOST need 2 GPUs, and \
{shown}. {way_out}, or give each rank its own: srun --gpus-per-task=1.
""",
    )


STORAGE_SCRIPT = """\
def train():
    pass

fit(train, workers={workers})
"""
STORAGE_ERROR = """\
Traceback (most recent call last):
  File "DIR/train.py", line 14, in <module>
    fit(train, workers={workers})
  File "DIR/train.py", line 9, in fit
    return DataParallelTrainer(train, **options).fit()
hpctrain.errors.ConfigError: RunConfig(storage_path='DIR/runs'): the run directory DIR/runs/run \
cannot be written: {why}
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_where_runs_are_to_lie(run_script: Any, tmp_path: Path, workers: int) -> None:
    (tmp_path / "runs").write_text("")
    assert_refused(
        run_script(STORAGE_SCRIPT.format(workers=workers)),
        STORAGE_ERROR.format(
            workers=workers,
            why="DIR/runs is not a directory. Move it away, or choose another storage_path.",
        ),
    )


def test_storage_of_somebody_else(run_script: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o555)
    command = ["python"]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and setpriv (util-linux) is not here")
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "python"]
    assert_refused(
        run_script(STORAGE_SCRIPT.format(workers=2), command=command),
        STORAGE_ERROR.format(
            workers=2,
            why=f"user {os.geteuid()} may not write into DIR/runs (Permission denied). Choose a "
            f"storage_path that is yours.",
        ),
    )


def test_storage_that_is_full(run_script: Any, small_filesystem: Any, tmp_path: Path) -> None:
    small_filesystem(tmp_path / "runs", "64k")
    (tmp_path / "runs" / "full").write_bytes(b"x" * 65536)
    assert_refused(
        run_script(STORAGE_SCRIPT.format(workers=2)),
        STORAGE_ERROR.format(
            workers=2,
            why="No space left on device. Free some, or choose a storage_path on another "
            "filesystem.",
        ),
    )


ONE_LINE = [
    (
        'RunConfig(storage_path="s3://bucket/runs")',
        "ConfigError: RunConfig(storage_path='s3://bucket/runs') is a URL. Runs need a "
        "filesystem that all nodes share: give a directory there.",
    ),
    (
        'hpctrain.SlurmConfig(partiton="gpu")',
        "UnknownFieldError: SlurmConfig has no field 'partiton'. Did you mean 'partition'?",
    ),
    (
        "DataParallelTrainer(print, trian_loop_config={})",
        "UnknownFieldError: DataParallelTrainer has no argument 'trian_loop_config'. Did you mean "
        "'train_loop_config'?",
    ),
    (
        'DataParallelTrainer(print, {"lr": 0.1})',
        "UnknownFieldError: DataParallelTrainer(): too many positional arguments. By position: "
        "train_loop_per_worker. By name: train_loop_config, backend_config, dataset_config, "
        "validation_config, scaling_config, run_config, datasets, metadata, "
        "resume_from_checkpoint, preprocessor.",
    ),
    (
        'hpctrain.SlurmConfig(time="two hours")',
        "ConfigError: SlurmConfig(time='two hours'): Slurm reads minutes, minutes:seconds, "
        "hours:minutes:seconds, days-hours, days-hours:minutes or days-hours:minutes:seconds.",
    ),
    (
        'hpctrain.report({"loss": 1.0})',
        "WorkerContextError: report() was called outside of a training function. It works inside "
        "the function that a trainer runs on its workers, and only in the worker's own process.",
    ),
    (
        "ScalingConfig(num_workers=(8, 4))",
        "ConfigError: ScalingConfig(num_workers=(8, 4)): the fewest workers come first, then the "
        "most: num_workers=(4, 8).",
    ),
    (
        "DataParallelTrainer(print, train_loop_config=[1, 2])",
        "ConfigError: train_loop_config=[1, 2] is a list. The training function is called with a "
        "dict: train_loop_config={'lr': 0.1}.",
    ),
]


@pytest.mark.parametrize(("line", "text"), ONE_LINE)
def test_a_line_that_cannot_work(run_script: Any, line: str, text: str) -> None:
    assert_refused(
        run_script(line + "\n"),
        f"""\
Traceback (most recent call last):
  File "DIR/train.py", line 11, in <module>
    {line}
hpctrain.errors.{text}
""",
    )
