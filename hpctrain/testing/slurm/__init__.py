"""A throw-away Slurm cluster of several nodes on one Linux machine.

It runs the real slurmctld, slurmd, munged and, on demand, slurmdbd, with a configuration and a
munge key of its own. Nothing below ``/etc`` is read or written, and neither systemd nor cgroups
are used. Clusters do not disturb each other.

::

    mode namespaces (root)                              mode flat (any user)
    host ── head ─┬─ node1   each a network, UTS,       host: slurmctld, slurmd -N node1,
      login  ctld ├─ node2   PID, IPC and mount               slurmd -N node2 ... on 127.0.0.1
                  └─ node3   namespace with slurmd            with a port each

In mode ``namespaces`` every node has its own host name, address, processes and ``/dev/shm``, and
on demand its own ``/tmp``; it can lose its power or its network.

Partitions: ``main`` (the default), ``high`` and ``low`` (jobs of ``low`` make room for all others
after 5 s), ``shared`` (``OverSubscribe=FORCE:4``), ``short`` (2 minutes at most), ``down`` (starts
nothing). With accounting, jobs may be charged to the account ``hpctrain`` only.

Examples
--------
>>> with VirtualCluster.start(ClusterSpec(num_nodes=2)) as cluster:  # doctest: +SKIP
...     print(cluster.run_on("head", ["srun", "-N2", "hostname"]).stdout)
node1
node2
"""

from hpctrain.testing.slurm.cluster import VirtualCluster
from hpctrain.testing.slurm.components import best_mode, describe_missing, missing_components
from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.layout import DEFAULT_STATE_DIR
from hpctrain.testing.slurm.spec import ClusterSpec
from hpctrain.testing.slurm.status import ClusterStatus, NodeStatus

__all__ = [
    "DEFAULT_STATE_DIR",
    "ClusterError",
    "ClusterSpec",
    "ClusterStatus",
    "NodeStatus",
    "VirtualCluster",
    "best_mode",
    "describe_missing",
    "missing_components",
]
