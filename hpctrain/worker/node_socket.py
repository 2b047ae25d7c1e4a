"""Where the ranks of a node find its agent."""

from __future__ import annotations

import socket

from hpctrain import environ


def node_socket_name(template: str) -> str:
    """Return a socket's name with ``%N`` replaced by the name of this node.

    Not collective.
    """
    return template.replace("%N", node_name())


def node_name() -> str:
    """Return Slurm's name of this node, which need not be its host name. Not collective."""
    return environ.variable("SLURMD_NODENAME") or socket.gethostname()
