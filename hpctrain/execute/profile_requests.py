"""`ProfileRequests`: pass on which ranks a person wants profiled."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.rundir.files import make_directory
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.profile_request import ProfileRequest
from hpctrain.rundir.reading import read_content

_LOOK_INTERVAL_S = 2.0
_MOST_BYTES = 2**20


class ProfileRequests:
    """Looks for a request in the run directory, and sends it to the ranks.

    Parameters
    ----------
    paths
        The run directory.
    broadcast
        Sends a command to all ranks.
    note
        Writes an event into the ledger.
    """

    def __init__(
        self, paths: RunPaths, broadcast: Callable[..., None], note: Callable[..., None]
    ) -> None:
        self._paths = paths
        self._broadcast = broadcast
        self._note = note
        self._look_at = 0.0

    def step(self) -> None:
        """Pass a request on if there is one. Not collective."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_INTERVAL_S
        if not os.path.lexists(self._paths.profile_request):
            return
        request = self._take()
        if request is None:
            return
        with suppress(OSError):
            make_directory(self._paths.profile(request.name), below=self._paths.root)
        self._note("profile-asked", ranks=list(request.ranks), name=request.name)
        self._broadcast("profile", request=request.to_json())

    def _take(self) -> ProfileRequest | None:
        path = self._paths.profile_request
        try:
            # Of a regular file: opening a FIFO would wait for a writer.
            content: Any = json.loads(read_content(path, most=_MOST_BYTES))
            return ProfileRequest.from_json(content)
        except (OSError, ValueError, RecursionError, HpctrainError):
            # The command times out; the run goes on.
            return None
        finally:
            with suppress(OSError):
                path.unlink()
