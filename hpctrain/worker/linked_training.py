"""`LinkedTraining`: a rank's part of the training, whose executor is at the other end of a link."""

from __future__ import annotations

import json
import os
from contextlib import closing
from typing import TYPE_CHECKING

from hpctrain.checkpoint import Checkpoint
from hpctrain.control.link import Link
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.failure import describe_exception
from hpctrain.worker.import_watch import ImportWatch
from hpctrain.worker.link_channel import LinkChannel, connect_session
from hpctrain.worker.report import Session
from hpctrain.worker.train import pack_return_value, run_training
from hpctrain.world import World

if TYPE_CHECKING:
    from hpctrain.worker.mpi import Comm


class LinkedTraining:
    """Calls the training function on this rank; the executor gets all that it reports.

    Parameters
    ----------
    link
        To the executor.
    world
        Where this rank stands.
    paths
        The run directory.
    run_spec
        What is run.
    first_report
        Number of the report that it resumes from.
    checkpoint
        What it resumes from.
    """

    def __init__(
        self,
        link: Link,
        *,
        world: World,
        paths: RunPaths,
        run_spec: RunSpec,
        first_report: int,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._link = link
        self._world = world
        self._paths = paths
        self._spec = run_spec
        self._phase = "importing"
        # Ranks import the same, as a rule.
        watched = run_spec.settings.preload_for_trials if world.world_rank == 0 else ()
        self._imports = ImportWatch(watched)
        self._session = Session(
            world=world,
            paths=paths,
            channel=LinkChannel(
                link, at_once=run_spec.settings.awaits_decisions, imports=self._imports
            ),
            first_report=first_report,
            checkpoint=checkpoint,
            commit_timeout_s=run_spec.settings.commit_timeout_s,
        )
        connect_session(link, self._session)

    def run(self, comm: Comm) -> None:
        """Train, and send what the function returned. Collective."""
        with closing(self._imports):
            value = run_training(
                self._spec,
                paths=self._paths,
                session=self._session,
                comm=comm,
                on_phase=self._enter,
            )
        body = pack_return_value(self._world, value)
        self._link.post("done", body, notified=self._session.was_notified)

    def post_failure(self, error: BaseException) -> str:
        """Send why this rank fails; return it in one line. Not collective."""
        failure = describe_exception(
            error,
            rank=self._world.world_rank,
            hostname=self._world.hostname,
            pid=os.getpid(),
            report=self._session.reports,
            phase=self._phase,
        )
        self._link.post("failed", json.dumps(failure.to_json()).encode())
        return failure.message

    def _enter(self, phase: str) -> None:
        self._phase = phase
        if phase == "backend":
            self._imports.enter_backend()
        elif phase == "training":
            self._imports.enter_training()
        self._link.post("phase", phase=phase)
