"""`elastic_state`: Horovod's elastic state, which also knows how many reports were made."""

from __future__ import annotations

from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.worker.context import active_worker


def elastic_state(model: Any = None, optimizer: Any = None, **values: Any) -> Any:
    """Return a ``horovod.torch.elastic.TorchState`` for ``hvd.elastic.run``. Not collective.

    After a worker was replaced all go on from the last ``state.commit()``, and repeat the steps
    since then. This state takes the count of reports back, too, so that a report that was made is
    not made again. Its commits are agreed on, and it lets the other workers notice at once what one
    of them has noticed.

    Parameters
    ----------
    model, optimizer
        Of torch.
    **values
        What else belongs to the state: an epoch, a sampler. They become attributes of it.

    Raises
    ------
    ConfigError
        If the run is not elastic.

    Examples
    --------
    ::

        state = hpctrain.horovod.elastic_state(model, optimizer, epoch=0)

        @hvd.elastic.run
        def train(state):
            while state.epoch < 10:
                ...
                state.epoch += 1
                hpctrain.report({"loss": loss})
                state.commit()

        train(state)
    """
    from hpctrain.horovod.worker_session import WorkerSession

    session: Any = active_worker("elastic_state()").session
    if not isinstance(session, WorkerSession):
        raise ConfigError(
            "elastic_state() is for elastic runs: HorovodConfig(max_replacements=...) of 1 or "
            "more, in a HorovodTrainer."
        )
    from horovod.torch.elastic import TorchState

    class ReportCountingState(TorchState):  # type: ignore[misc]
        """A state one of whose values is the number of reports."""

        @property
        def hpctrain_reports(self) -> int:
            reports: int = session.reports
            return reports

        @hpctrain_reports.setter
        def hpctrain_reports(self, reports: int) -> None:
            session.reports = reports

        def commit(self) -> None:
            # The other way round than Horovod does it: this is a broadcast, which ends on no worker
            # before all have called it, with all their reports made.
            self.check_host_updates()
            self.save()

        def restore(self) -> None:
            # Is called after an error, before Horovod is initialised anew.
            super().restore()
            session.connections.break_off()

        def on_reset(self) -> None:
            session.connections.note()
            super().on_reset()

    session.is_counted = True
    return ReportCountingState(
        model=model, optimizer=optimizer, hpctrain_reports=session.reports, **values
    )
