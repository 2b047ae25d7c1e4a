"""What a failed rank says of itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hpctrain.worker.imports import advise_on_import, failed_import, missing_module

_MAX_PICKLE_BYTES = 2**20
_OUR_FILES = f"{Path(__file__).parent.parent}/"


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """Why a rank failed; the content of ``failures/ATTEMPT/rank-NNNNN.json``."""

    rank: int
    """World rank; -1 if the rank failed before it knew."""
    hostname: str
    pid: int
    report: int
    """Number of its last report."""
    phase: str
    type: str
    """Class of the exception; empty if the process died without one."""
    message: str
    traceback: str
    """Of the user's own code, as Python prints it."""
    time: float
    exception: str | None = None
    """The pickled exception in base64, if it can be pickled."""
    advice: str = ""
    """What to type where an import failed; empty if none did."""
    missing_module: str = ""
    """Full name of the module that was not there, if that is why."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> RankFailure:
        """Return what `to_json` gave."""
        return RankFailure(**content)

    def to_exception(self) -> BaseException:
        """Return the exception itself, or one with its text.

        This unpickles: only for failures of a run of one's own.
        """
        if self.exception is not None:
            import base64
            import pickle

            try:
                error = pickle.loads(base64.b64decode(self.exception))
            except Exception:  # its class may exist on the worker only
                error = None
            if isinstance(error, BaseException):
                return error
        return RuntimeError(f"{self.type}: {self.message}" if self.type else self.message)


def describe_exception(
    error: BaseException, *, rank: int, hostname: str, pid: int, report: int, phase: str
) -> RankFailure:
    """Return what there is to say of an exception in the user's code. Not collective."""
    import traceback

    error.__traceback__ = _user_frames(error.__traceback__)
    of_import = failed_import(error)
    return RankFailure(
        rank=rank,
        hostname=hostname,
        pid=pid,
        report=report,
        phase=phase,
        type=type(error).__qualname__,
        message=str(error),
        traceback="".join(traceback.format_exception(type(error), error, error.__traceback__)),
        time=time.time(),
        exception=_pickle(error),
        advice="" if of_import is None else advise_on_import(of_import),
        missing_module="" if of_import is None else missing_module(of_import),
    )


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not ours, or all of it if there is none."""
    first = trace
    while first is not None:
        if not first.tb_frame.f_code.co_filename.startswith(_OUR_FILES):
            return first
        first = first.tb_next
    return trace


def _pickle(error: BaseException) -> str | None:
    import base64
    import pickle

    from hpctrain.plan.spec import pack

    try:
        content = pack(error, what="the exception")
        pickle.loads(content)  # a class with its own __init__ often cannot be rebuilt
    except Exception:  # whatever its own reduction raises
        return None
    return base64.b64encode(content).decode() if len(content) <= _MAX_PICKLE_BYTES else None
