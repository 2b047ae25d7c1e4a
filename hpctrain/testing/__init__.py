"""Tools for plugin authors and tests: fakes, contract classes, a virtual Slurm cluster.

Nothing is imported here: every part is asked for by its own name, so that a test which needs one
of them does not pay for the others. `BackendContract`, which authors of backends subclass, is
imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.testing.backend_contract import BackendContract as BackendContract

__all__ = ["BackendContract"]


def __getattr__(name: str) -> Any:
    """Import the contract at its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'hpctrain.testing' has no attribute {name!r}")
    from hpctrain.testing.backend_contract import BackendContract

    return BackendContract
