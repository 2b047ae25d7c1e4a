"""Errors of the filesystem that may pass: they end a sweep, which goes on later, and no trial."""

from __future__ import annotations

from hpctrain.errors import HpctrainError
from hpctrain.rundir.files import may_pass


def raise_if_passing(error: HpctrainError) -> None:
    """Raise the error of the filesystem that an error is about, if that may pass.

    Not collective. Every further trial would fail of a full disk as well.

    Raises
    ------
    OSError
        If the cause of `error` is one that may pass.
    """
    cause = error.__cause__
    if isinstance(cause, OSError) and may_pass(cause):
        raise cause
