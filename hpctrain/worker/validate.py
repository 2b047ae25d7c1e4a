"""The process of one validation: ``python -m hpctrain.worker.validate RUN NAME RESULT SPEC PID``.

It calls the validation function of the run with one checkpoint, and writes the metrics into a file
that its executor, the process PID, reads. What it prints is its log. In a job of its own PID is 0.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpctrain.errors import ConfigError
from hpctrain.log import log
from hpctrain.plan import spec
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.manifest import read_manifest
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.trust import read_spec
from hpctrain.worker.metrics import encode_metrics
from hpctrain.worker.train import export_thread_counts, settle

_NICENESS = 10
_LOOK_INTERVAL_S = 1.0
# As of a rank: BSD's EX_UNAVAILABLE.
_EXIT_EXECUTOR_LOST = 69


def run_validation(argv: list[str]) -> None:
    """Validate a checkpoint, as of the command line. Not collective."""
    root, name, result, digest, executor = argv
    if int(executor):
        _ignore_warnings_of_slurm()
        _leave_with(int(executor))
        # The training has the same cores.
        os.nice(_NICENESS)
    paths = RunPaths(Path(root))
    run_spec = RunSpec.from_bytes(read_spec(paths, digest=digest))
    assert run_spec.validation is not None
    settings, job = run_spec.settings, run_spec.validation.job
    if job is not None:
        settings = replace(settings, cpus_per_worker=job.cpus)
    settle(settings, sources=run_spec.sources)
    export_thread_counts(settings)
    from hpctrain.checkpoint import Checkpoint

    directory = paths.checkpoints / name
    task = read_manifest(directory).validation or {}
    validate = spec.unpack(run_spec.validation.fn)
    checkpoint = Checkpoint(directory)
    try:
        metrics = validate(checkpoint, **task.get("fn_kwargs", {}))
        if not isinstance(metrics, dict):
            raise ConfigError(
                f"the validation function returned {metrics!r:.80} of type "
                f"{type(metrics).__name__}. Return a dict of metrics, such as {{'accuracy': 0.9}}."
            )
        content = encode_metrics(metrics)
    except Exception as error:
        _keep_failure(error, Path(result).with_suffix(".failure.json"))
        raise
    write_atomic(Path(result), content)


def _keep_failure(error: Exception, path: Path) -> None:
    """Write down what the validation function raised, for the executor and for people."""
    from hpctrain.worker.failure import describe_exception

    failure = describe_exception(
        error,
        rank=-1,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        report=0,
        phase="validating",
    )
    # Without it the log has the whole traceback still.
    with suppress(OSError):
        write_atomic(path, json.dumps(failure.to_json()).encode())


def _is_alive(executor: int) -> bool:
    if os.getppid() == executor:
        return True
    try:
        # In a container, its runtime is the parent.
        os.kill(executor, 0)
    except ProcessLookupError:
        return False
    return True


def _leave_with(executor: int) -> None:
    """End this process when its executor is gone: the metrics would not be read."""

    def watch() -> None:
        while _is_alive(executor):
            time.sleep(_LOOK_INTERVAL_S)
        log("the executor is gone; this validation leaves.")
        os._exit(_EXIT_EXECUTOR_LOST)

    threading.Thread(target=watch, name="hpctrain-executor-watch", daemon=True).start()


def _ignore_warnings_of_slurm() -> None:
    """Leave it to the executor what follows from them: Slurm sends them to all of a job."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run_validation(sys.argv[1:])
