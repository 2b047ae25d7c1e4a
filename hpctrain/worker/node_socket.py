"""Where the ranks of a node find its agent."""

from __future__ import annotations

import socket
from pathlib import Path

from hpctrain import environ


def node_socket_path(template: str) -> Path:
    """Return a socket's path with ``%N`` replaced by the name of this node.

    Not collective. Slurm's name of the node, since several nodes of a test cluster can share one
    host name.
    """
    return Path(template.replace("%N", environ.variable("SLURMD_NODENAME") or socket.gethostname()))
