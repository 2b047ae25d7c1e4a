from __future__ import annotations

import pytest

from hpctrain.errors import RunStoppedError, WorkerError
from hpctrain.execute.run_end import describe_run_end
from hpctrain.rundir.states import RunEvent

INTERRUPTED = "it was interrupted (Ctrl-C); fit() with the same name resumes it"


@pytest.mark.parametrize(
    ("error", "event", "message"),
    [
        (None, RunEvent.FINISHED, None),
        (RunStoppedError("asked to"), RunEvent.STOPPED, "asked to"),
        (KeyboardInterrupt(), RunEvent.STOPPED, INTERRUPTED),
        (SystemExit(), RunEvent.STOPPED, INTERRUPTED),
        (WorkerError("rank 1 failed"), RunEvent.FAILED, "rank 1 failed"),
        (ValueError("no"), RunEvent.FAILED, "ValueError: no"),
    ],
)
def test_the_error_says_how_a_run_has_ended(
    error: BaseException | None, event: RunEvent, message: str | None
):
    assert describe_run_end(error) == (event, message)
