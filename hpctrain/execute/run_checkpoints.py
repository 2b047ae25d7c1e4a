"""`RunCheckpoints`: makes the checkpoints of a run from what ranks staged, and deletes old ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.checkpoint import Checkpoint
from hpctrain.config import CheckpointConfig
from hpctrain.control.wire import MAX_TEXT_CHARS
from hpctrain.errors import CheckpointError
from hpctrain.execute.deletions import Deletions
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.execute.room import has_room
from hpctrain.execute.tracker import ReportRound
from hpctrain.log import log
from hpctrain.metric_names import COUNTED, find_metric, find_number, has_metric
from hpctrain.rundir.display import shorten
from hpctrain.rundir.files import retry
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.store import CheckpointStore

# A server of a parallel filesystem that fails over is away for about as long; a run that is to
# stop waits no longer than Slurm does before it kills (KillWait, 30 s).
_PAUSES_S = (1.0, 4.0, 16.0)


class RunCheckpoints:
    """The checkpoints of a run, as its executor keeps them. One for a run, over all attempts.

    Parameters
    ----------
    run_record
        Where its actions are written.
    config
        Which of them are kept.
    """

    def __init__(self, run_record: ExecutorRecord, config: CheckpointConfig) -> None:
        self._deletions = Deletions()
        self.store = CheckpointStore(run_record.paths.checkpoints, delete=self._deletions.begin)
        self.latest: Checkpoint | None = None
        """The newest complete one."""
        self.saved = 0
        """Its report; 0 where there is none."""
        self._run_record = run_record
        self._config = config
        self._in_use: str | None = None
        self._has_warned = False

    @property
    def latest_name(self) -> str | None:
        """Name of `latest`; None where there is none."""
        return None if self.latest is None else self.latest.path.name

    def newest(self) -> Manifest | None:
        """Return the newest one on disk; None where there is none."""
        manifests = retry(self.store.known_manifests, patience_s=sum(_PAUSES_S))
        return max(manifests, key=lambda manifest: manifest.report, default=None)

    def begin_attempt(self, check_stop: Callable[[], None] = lambda: None) -> Manifest | None:
        """Find the newest good one, to resume from; it is kept until the attempt ends.

        Parameters
        ----------
        check_stop
            Raises if the run is to stop: called between files, and while they cannot be read.

        Raises
        ------
        UnreadableError, OSError
            If it cannot be read, or they cannot be listed, some looks later neither.
        """
        manifest, damages = self._newest_good(check_stop)
        for damage in damages:
            self._run_record.note("checkpoint-damaged", error=damage)
            log(f"{damage} It is set aside.")
        if manifest is None:
            self.latest, self.saved, self._in_use = None, 0, None
        else:
            self.latest = self.store.open(manifest)
            self.saved, self._in_use = manifest.report, manifest.name
        return manifest

    def _newest_good(self, check_stop: Callable[[], None]) -> tuple[Manifest | None, list[str]]:
        for pause_s in (*_PAUSES_S, None):
            try:
                self.store.prepare()
                self._free_room()
                doubtful = self._run_record.begun_with
                return self.store.newest_good(doubtful=doubtful, check_stop=check_stop)
            except (UnreadableError, OSError) as error:
                if pause_s is None:
                    raise
                self._run_record.note("checkpoint-unreadable", error=str(error))
                log(
                    f"{str(error).rstrip('.')}. Looking again in {pause_s:.0f} s.",
                )
                time.sleep(pause_s)
                check_stop()
        raise AssertionError("the last look raises or returns")

    def clear(self) -> None:
        """Delete what a failed attempt left half done; call it while no rank runs.

        It goes in the background, unless the disk has no room for other files.
        """
        if not self._run_record.may_write:
            return
        try:
            self.store.prepare()
        except OSError as error:
            # The next attempt looks again, and this one's end has a reason of its own.
            self._run_record.warn_unwritten("checkpoints/", error)
        self._free_room()

    def _free_room(self) -> None:
        """Wait for deletions on a disk that has no room for other files."""
        if self._deletions.is_at_work and not has_room(self._run_record.paths):
            self._deletions.finish()

    def close(self) -> None:
        """Wait until what is deleted is gone."""
        self._deletions.finish()

    def end_attempt(self) -> None:
        """Let go of what the attempt resumed from."""
        if self._in_use is not None:
            self._in_use = None
            self._retain()

    def commit(self, round_: ReportRound, broadcast: Callable[..., None]) -> Checkpoint | None:
        """Make one of what ranks staged with a report, and send them what became of it.

        None is deleted for it yet: see `retain`.
        """
        run_record = self._run_record
        attempt = run_record.status.attempt
        try:
            run_record.check()
            for part in round_.parts.values():
                if part.error is not None:
                    raise CheckpointError(part.error)
            checkpoint, conflicts = self.store.commit(
                attempt=attempt,
                report=round_.report,
                world_size=run_record.status.world_size,
                metrics=round_.metrics(),
                parts=round_.parts,
                validation=round_.validation,
            )
        except (OSError, CheckpointError) as error:
            reason = str(error)
            if isinstance(error, OSError):
                reason = f"{error.strerror or error} ({error.filename})"
            # The disk may be full, and the run goes on if its ranks do.
            self.store.abandon(attempt=attempt, report=round_.report)
            reason = shorten(reason, MAX_TEXT_CHARS)
            broadcast("committed", report=round_.report, path=None, error=reason)
            return None
        self.latest = checkpoint
        self.saved = round_.report
        broadcast("committed", report=round_.report, path=str(checkpoint.path), error=None)
        if conflicts:
            log(
                f"checkpoint {checkpoint.path.name}: ranks saved different content under "
                f"the same name; the lowest rank's was kept: {', '.join(conflicts)}",
            )
        run_record.change_later(checkpoint=checkpoint.path.name)
        return checkpoint

    def retain(
        self, checkpoint: Checkpoint, metrics: Mapping[str, Any], *, is_pending: bool = False
    ) -> None:
        """Delete what is not to be kept beside a new one.

        Parameters
        ----------
        is_pending
            Whether it is to be validated, which may give its score.
        """
        if not is_pending:
            self._warn_of_missing_score(checkpoint.path.name, metrics)
        self._retain()

    def end_validation(self, manifest: Manifest, metrics: Mapping[str, Any]) -> bool:
        """Give a checkpoint what its validation found, and rank it; return whether it is there.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        if not self.store.end_validation(manifest, metrics):
            return False
        self.retain(self.store.open(manifest), {**manifest.metrics, **metrics})
        return True

    def describe(self) -> bytes:
        """Return all that there are, in the form that ranks read."""
        found = [
            [str(self.store.open(manifest).path), dict(manifest.metrics)]
            for manifest in self.store.known_manifests()
        ]
        return json.dumps(found).encode()

    def _warn_of_missing_score(self, name: str, metrics: Mapping[str, Any]) -> None:
        """Log once that a checkpoint is ranked last."""
        attribute = self._config.checkpoint_score_attribute
        if attribute in (None, COUNTED[0]) or self._has_warned:
            return
        if find_number(metrics, attribute) is not None:
            return
        if has_metric(metrics, attribute) and find_metric(metrics, attribute) is None:
            # It is not measured yet.
            return
        self._has_warned = True
        log(
            f"checkpoint {name} has no metric {attribute!r}, by which "
            f"CheckpointConfig(checkpoint_score_attribute=...) keeps the best; it has "
            f"{', '.join(sorted(metrics)) or 'none'}. Such checkpoints rank last, and of those the "
            f"oldest are deleted first.",
        )

    def _retain(self) -> None:
        # Ranks may read what the attempt resumed from for as long as it lasts.
        protected = () if self._in_use is None else (self._in_use,)
        if not self._run_record.may_write:
            return
        try:
            self.store.retain(self._config, protected=protected)
        except OSError as error:
            self._run_record.warn_unwritten("checkpoints/", error)
