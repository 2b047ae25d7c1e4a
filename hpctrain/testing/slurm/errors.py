"""The one exception of the virtual cluster."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """The virtual cluster cannot do what it was asked; the message says what to do next."""
