"""What executors, and the tuner, send to the step of a slot, and how executors prove themselves."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping

from hpctrain.control.proof import Credentials
from hpctrain.control.wire import encode_frame

SECRET_BYTES = 32


def credentials(secret: bytes) -> Credentials:
    """Return the credentials of a connection to the step of a slot. Not collective."""
    return Credentials(secret, run="slot", attempt=0)


def digest_variables(variables: Mapping[str, str]) -> dict[str, int]:
    """Return what shows whether a variable has the same value elsewhere. Pure."""
    return {name: zlib.crc32(os.fsencode(value)) for name, value in variables.items()}


def encode_request(
    argv: list[str],
    *,
    command: list[str],
    environment: Mapping[str, str],
    of_rank: Mapping[str, str],
    without: list[str],
    cwd: str,
    agent: bool,
    modules: list[str],
    own_places: list[str],
) -> bytes:
    """Return the frame that asks for a process in the step of a slot. Pure; not collective.

    Parameters
    ----------
    argv
        The launcher of ranks; empty for an agent.
    command
        Of a rank, or of the agent.
    environment
        Of the executor, for them. What the step has itself counts more.
    of_rank, without
        Variables of the step that are others for them, and those that they do not have.
    cwd
        Working directory.
    agent
        Whether it is an agent.
    modules, own_places
        What ranks import, and directories of the user's modules.
    """
    body = {
        "argv": argv,
        "command": command,
        "environment": {**environment},
        "cwd": cwd,
        "of_rank": {**of_rank},
        "without": without,
        "agent": agent,
        "modules": modules,
        "own_places": own_places,
    }
    return encode_frame({"op": "start"}, json.dumps(body).encode())
