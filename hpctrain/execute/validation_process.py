"""`ValidationProcess`: validates a checkpoint in a process beside the executor."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.execute.process import StepProcess
from hpctrain.execute.validation_end import (
    RunningValidation,
    ValidationEnd,
    explain_status,
    explain_timeout,
    read_metrics,
    task_timeout_s,
)
from hpctrain.own_time import Deadline
from hpctrain.plan.process_argv import validation_argv
from hpctrain.plan.spec import ValidationSpec
from hpctrain.rundir.files import make_directory
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.paths import RunPaths

_WARNINGS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class ValidationProcess(RunningValidation):
    """A validation that runs beside the executor.

    Parameters
    ----------
    paths
        The run directory.
    attempt
        The attempt that begins it.
    manifest
        Of the checkpoint.
    spec
        How it is validated.
    digest
        That of the spec of the run.

    Raises
    ------
    LaunchError, OSError
        If it cannot be started.
    """

    def __init__(
        self,
        paths: RunPaths,
        *,
        attempt: int,
        manifest: Manifest,
        spec: ValidationSpec,
        digest: str,
    ) -> None:
        super().__init__(manifest, log=paths.validation_log(attempt, manifest.report))
        self._result = paths.validation_result(attempt, manifest.report)
        self._failure = paths.validation_failure(attempt, manifest.report)
        make_directory(self._result.parent, below=paths.root)
        self._result.unlink(missing_ok=True)
        self._failure.unlink(missing_ok=True)
        self._timeout_s = task_timeout_s(manifest)
        container = spec.container
        argv = validation_argv(
            sys.executable if container is None else container.python,
            run_dir=str(paths.root),
            checkpoint=manifest.name,
            result=str(self._result),
            spec_digest=digest,
            executor=os.getpid(),
        )
        if container is not None:
            from hpctrain.execute.rank_container import vendor_of_gpus
            from hpctrain.plan.container import enter_container

            gpus = vendor_of_gpus(int(spec.use_gpu))
            argv = [*enter_container(container, argv, cwd=os.getcwd(), gpus=gpus).argv]
        self._process = StepProcess(argv, environment=_environment(spec), log=self.log)
        self._deadline = None if self._timeout_s is None else Deadline(self._timeout_s)
        self._began_at = time.monotonic()

    @property
    def leftovers(self) -> tuple[Path, ...]:
        """Files that are no longer needed once its end is recorded."""
        return (self._result,)

    def look(self) -> ValidationEnd | None:
        """Return how it has ended; None while it goes on."""
        status = self._process.returncode()
        if status is None and (self._deadline is None or not self._deadline.is_over):
            return None
        # What it has started may be there still.
        self._process.kill(timeouts.VALIDATION_END_S)
        metrics: Mapping[str, Any] = {}
        error: str | None = None
        traceback = ""
        if status is None:
            error = explain_timeout(self._timeout_s)
        elif status != 0:
            error, traceback = explain_status(status, self._process.last_lines(1), self._failure)
        else:
            metrics, error = read_metrics(self._result)
        return self.make_end(
            metrics,
            error,
            traceback,
            seconds=time.monotonic() - self._began_at,
            is_taken_away=status is not None and -status in _WARNINGS,
        )

    def wait(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._process.wait(timeout_s)

    def end(self) -> None:
        """End it."""
        self._process.kill(timeouts.VALIDATION_END_S)

    def leave(self) -> None:
        """End it: the next executor of the run begins it again."""
        self.end()


def _environment(spec: ValidationSpec) -> dict[str, str]:
    environment = environ.without_launcher_variables(environ.environment())
    # What the function starts by itself stays on this machine.
    environment[environ.RANK_MARKER] = "1"
    if not spec.use_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment
