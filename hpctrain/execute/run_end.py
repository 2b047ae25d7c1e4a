"""How a run has ended, by the error that ended it. Pure."""

from __future__ import annotations

from hpctrain.errors import HpctrainError, RunStoppedError
from hpctrain.printable import describe_error, text_of
from hpctrain.rundir.states import RunEvent


def describe_run_end(error: BaseException | None) -> tuple[RunEvent, str | None]:
    """Return the event that ends a run, and the error in words. Not collective.

    Parameters
    ----------
    error
        What ended it; None if the training function returned on every rank.

    Examples
    --------
    >>> describe_run_end(ValueError("no such column"))
    (<RunEvent.FAILED: 'failed'>, 'ValueError: no such column')
    """
    if error is None:
        return RunEvent.FINISHED, None
    if isinstance(error, (RunStoppedError, KeyboardInterrupt, SystemExit)):
        interrupted = "it was interrupted (Ctrl-C); fit() with the same name resumes it"
        return RunEvent.STOPPED, text_of(error) or interrupted
    is_ours = isinstance(error, HpctrainError)
    return RunEvent.FAILED, str(error) if is_ours else describe_error(error)
