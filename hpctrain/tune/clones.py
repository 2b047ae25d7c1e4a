"""`Clones`: checkpoints of trials of this machine, given to other trials."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from hpctrain.checkpoint_lock import hold_for_reading
from hpctrain.errors import LaunchError
from hpctrain.execute.fence import Fence
from hpctrain.launch.claim import claimed
from hpctrain.launch.life import LifeTest, job_is_alive
from hpctrain.rundir.clone import clone_checkpoint
from hpctrain.rundir.metrics import read_last_report
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status
from hpctrain.rundir.store import CheckpointStore
from hpctrain.tune.trial import Origin, Transfer, Trial


class Clones:
    """Gives checkpoints of trials to others.

    Parameters
    ----------
    run_of
        Returns the run directory of a trial.
    """

    def __init__(self, run_of: Callable[[str], Path]) -> None:
        self._run_of = run_of
        self._held: dict[str, ExitStack] = {}

    def hold(self, trial: Trial, transfer: Transfer) -> None:
        """Keep the checkpoint of a transfer from being deleted until `release`. Not collective.

        Raises
        ------
        CheckpointError
            If it is gone.
        """
        self.release(trial)
        stack = ExitStack()
        source = self._source(transfer)
        stack.enter_context(hold_for_reading(source))
        self._held[trial.trial_id] = stack

    def release(self, trial: Trial) -> None:
        """Let the checkpoint of a transfer be deleted, if one is held. Not collective."""
        if (stack := self._held.pop(trial.trial_id, None)) is not None:
            stack.close()

    def clone(self, trial: Trial, transfer: Transfer) -> Origin:
        """Put a checkpoint of another trial in the place of the last one. Not collective.

        Raises
        ------
        CheckpointError
            If it is gone.
        LaunchError
            If it cannot be written, or another process runs the trial.
        """
        paths = RunPaths(self._run_of(trial.trial_id))
        source = self._source(transfer)
        try:
            with claimed(paths):
                if LifeTest(paths, job_is_alive).watch():
                    raise LaunchError(f"{paths.root} was begun by another process.")
                # From here on an executor wrongly considered dead can no longer write.
                Fence(paths).take(paths)
                status, last = read_status(paths), read_last_report(paths)
                saved = CheckpointStore(paths.checkpoints).manifests()
                attempt = 0 if status is None else status.attempt
                report = max(
                    0 if status is None else status.reports,
                    0 if last is None else last["report"],
                    *(manifest.report for manifest in saved[-1:]),
                )
                clone_checkpoint(source, paths.checkpoints, report=report, attempt=attempt)
        except OSError as error:
            raise LaunchError(
                f"{source} cannot be put into {paths.checkpoints}: "
                f"{error.strerror or error} ({error.filename})."
            ) from error
        self.release(trial)
        return Origin(transfer=transfer, report=report, attempt=attempt)

    def _source(self, transfer: Transfer) -> Path:
        return RunPaths(self._run_of(transfer.donor)).checkpoints / transfer.checkpoint
