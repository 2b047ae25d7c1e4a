"""The seed of a run: it decides the random numbers of ranks that their function does not seed."""

from __future__ import annotations

import secrets

from hpctrain.errors import ConfigError, DamagedFileError
from hpctrain.launch.existing import policy_of
from hpctrain.launch.request import Request
from hpctrain.rundir.plan import read_plan

_BITS = 32
# There the script itself has started the process of each rank, and may have seeded it.
_SEEDED_BY_THE_SCRIPT = ("inline", "spmd")


def seed_of(request: Request, launcher: str) -> int | None:
    """Return the seed of a run: that of its last ``fit()``, or a new one.

    Not collective. None where the ranks are processes of the script.
    """
    if launcher in _SEEDED_BY_THE_SCRIPT:
        return None
    if (known := _known(request)) is not None:
        return known
    return new_seed()


def new_seed() -> int:
    """Return a seed that no other run has, as far as chance goes. Not collective."""
    return secrets.randbits(_BITS)


def _known(request: Request) -> int | None:
    try:
        if policy_of(request.run_config) == "restart":
            return None
        seed = read_plan(request.paths).get("seed")
    except (OSError, DamagedFileError, ConfigError):
        # What is wrong with it is for the caller that begins the run.
        return None
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else None
