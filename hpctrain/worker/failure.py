"""What a failed rank reports of itself."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.frames import fold_library_frames, format_user_traceback
from hpctrain.printable import describe_error, text_of
from hpctrain.worker.flight_recorder import recorded_collectives
from hpctrain.worker.imports import advise_on_import, failed_import, missing_module

LAST_WORDS = "this rank fails, and leaves:"
"""What the log of a rank has before its traceback, which the error of the run has, too."""
_MAX_PICKLE_BYTES = 2**20
# torch's words where a rank has no GPU: built without CUDA, no driver, none visible.
_NO_GPU = re.compile(
    r"Torch not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available"
)
# Errors of torch.distributed: a timeout, a rank that is gone.
_OF_COLLECTIVE = re.compile(
    r"^Dist\w*Error|gloo|NCCL|c10d|Timed out waiting|Connection (?:was )?(?:closed|reset)",
    re.IGNORECASE,
)
_USE_GPU = (
    "This rank has no GPU. ScalingConfig(use_gpu=True) gives each rank one, and "
    "hpctrain.torch.get_device() returns the device of the rank, GPU or CPU, for model.to()."
)


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
    """Of the user's own code, as Python prints it, with few frames of installed packages."""
    time: float
    exception: str | None = None
    """The pickled exception in base64, if it can be pickled."""
    advice: str = ""
    """What to type where an import failed; empty if none did."""
    missing_module: str = ""
    """Full name of the module that was not there, if that is why."""
    hint: str = ""
    """What to change in the training function, if that is known."""
    collectives: Sequence[Mapping[str, Any]] = ()
    """`GroupRecord.to_json` of each process group, if a collective has failed."""

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
    """Return what is reported of an exception in the user's code. Not collective."""
    of_import = failed_import(error)
    return RankFailure(
        rank=rank,
        hostname=hostname,
        pid=pid,
        report=report,
        phase=phase,
        type=type(error).__qualname__,
        message=text_of(error),
        traceback=_user_traceback(error),
        time=time.time(),
        exception=_encode(error),
        advice="" if of_import is None else advise_on_import(of_import),
        missing_module="" if of_import is None else missing_module(of_import),
        hint=_USE_GPU if _NO_GPU.search(text_of(error)) else "",
        collectives=_collectives_at(error),
    )


def _collectives_at(error: BaseException) -> list[dict[str, Any]]:
    """Return what is recorded of collectives, if it is one of them that has failed."""
    described = f"{type(error).__qualname__}: {text_of(error)}"
    return recorded_collectives(has_failed=True) if _OF_COLLECTIVE.search(described) else []


def _user_traceback(error: BaseException) -> str:
    """Return the traceback of the user's code; empty if our message is enough.

    The rank's log has all frames.
    """
    try:
        text = format_user_traceback(error, HpctrainError)
        if isinstance(error, HpctrainError) and "Traceback (most" not in text:
            return ""
        return fold_library_frames(text)
    except Exception:
        # Without this the failure itself would not be reported. What formats it cannot be imported,
        # as no descriptor is left or Python's files are away; or it fails on this exception.
        return describe_error(error)


def sendable(error: Exception) -> Exception:
    """Return an exception that another process can read: itself, or its class and text.

    Not collective.
    """
    return RuntimeError(describe_error(error)) if _pickle(error) is None else error


def _encode(error: BaseException) -> str | None:
    import base64

    content = _pickle(error)
    if content is None or len(content) > _MAX_PICKLE_BYTES:
        return None
    return base64.b64encode(content).decode()


def _pickle(error: BaseException) -> bytes | None:
    import pickle

    from hpctrain.plan.spec import pack

    try:
        content = pack(error, what="the exception")
        pickle.loads(content)  # a class with its own __init__ often cannot be rebuilt
    except Exception:  # whatever its own reduction raises
        return None
    return content
