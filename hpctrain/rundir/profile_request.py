"""`ProfileRequest`: which ranks are to be profiled, and for how long."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpctrain.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """The content of the file ``profile`` of a run directory, which its executor takes away."""

    name: str
    """Of the directory below ``profiles/`` for the traces."""
    ranks: tuple[int, ...]
    steps: int | None
    """Steps of the optimizer; None, or where the framework has none: by time."""
    seconds: float
    """How long ranks without such steps are sampled."""
    until: float
    """When the command times out, in seconds since the epoch."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        return json.dumps(self.to_json()).encode()

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> ProfileRequest:
        """Return what `to_json` gave.

        Raises
        ------
        ConfigError
            If a value is not valid in a request.
        """
        try:
            request = ProfileRequest(
                name=str(content["name"]),
                ranks=tuple(map(int, content["ranks"])),
                steps=None if content["steps"] is None else int(content["steps"]),
                seconds=float(content["seconds"]),
                until=float(content["until"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"no request for a profile: {error!r}") from error
        if not request.name.isalnum():
            # It becomes the name of a directory.
            raise ConfigError(f"name={request.name!r} of a profile; letters and digits are allowed")
        return request
