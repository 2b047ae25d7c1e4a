"""`CallbackCalls`: calls the callbacks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from hpctrain.callback import RunContext, UserCallback
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.log import log
from hpctrain.printable import describe_error
from hpctrain.rundir.sweep import sweep_of


class CallbackCalls:
    """Calls a hook of every callback, in their order.

    Parameters
    ----------
    callbacks
        As of ``RunConfig(callbacks=...)``.
    run_record
        What they get to know of the run, and where their errors are written.
    """

    def __init__(self, callbacks: Sequence[UserCallback], run_record: ExecutorRecord) -> None:
        self._callbacks = callbacks
        self._run_record = run_record

    @cached_property
    def _sweep(self) -> str | None:
        # A run stays where it is: not to be asked for on a shared filesystem with every report.
        return sweep_of(self._run_record.paths.root)

    def __bool__(self) -> bool:
        """Return whether there are callbacks."""
        return bool(self._callbacks)

    def call(self, hook: str, *args: Any, report: int) -> None:
        """Call a hook of every callback; one that raises is logged, and ends the run if fatal.

        Parameters
        ----------
        hook
            Name of the method.
        *args
            What it gets after the context.
        report
            The last report that was recorded.
        """
        status = self._run_record.status
        context = RunContext(
            name=status.name,
            path=self._run_record.paths.root,
            attempt=status.attempt,
            world_size=status.world_size,
            report=report,
            sweep=self._sweep,
        )
        for callback in self._callbacks:
            try:
                getattr(callback, hook)(context, *args)
            except Exception as error:
                described = f"{type(callback).__name__}.{hook}: {describe_error(error)}"
                self._run_record.note("callback-failed", error=described)
                log(f"callback failed: {described}")
                if callback.fatal:
                    raise
