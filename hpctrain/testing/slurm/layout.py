"""Paths of a cluster's files in its state directory.

::

    STATE/cluster.json        what another process needs to attach
          etc/                slurm.conf gres.conf cgroup.conf hosts munge.key ...
          log/                one file a daemon; all that is left after a start that failed
          run/                sockets, pid files
              nodes/NAME      pid and start time of a node's pid 1, seen from the host
              daemons/NAME    pid and start time of a daemon, seen from its node
          ctld/ spool/ tmp/ dev/ mysql/    of slurmctld, slurmd, PMIx, the fake GPUs, MariaDB
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.spec import ClusterSpec

DEFAULT_STATE_DIR = Path(f"/tmp/hpctrain-cluster-{os.getuid()}")

# AF_UNIX paths end at 107 bytes, and PMIx puts its socket as deep as
# STATE/spool/<node>/pmix.<job>.<step>/pmix.<n>/stepd.slurm.pmix.<job>.<step>.
MAX_STATE_DIR_LENGTH = 40


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The paths below one state directory."""

    state_dir: Path

    def __post_init__(self) -> None:
        length = len(os.fsencode(self.state_dir))
        if length > MAX_STATE_DIR_LENGTH:
            raise ClusterError(
                f"state_dir={self.state_dir} has {length} characters, but Slurm and PMIx make "
                f"sockets below it, whose paths are limited. Use a path of at most "
                f"{MAX_STATE_DIR_LENGTH} characters, for example {DEFAULT_STATE_DIR}."
            )

    @classmethod
    def of(cls, state_dir: Path) -> Layout:
        """Return the layout of a directory, which need not exist, with symbolic links resolved."""
        return cls(state_dir=state_dir.resolve())

    @property
    def etc(self) -> Path:
        """Configuration of Slurm, munge and the nodes."""
        return self.state_dir / "etc"

    @property
    def log(self) -> Path:
        """One file for each daemon and node."""
        return self.state_dir / "log"

    @property
    def run(self) -> Path:
        """Sockets, pid files and identities of processes."""
        return self.state_dir / "run"

    @property
    def record(self) -> Path:
        """Data for another process to attach."""
        return self.state_dir / "cluster.json"

    @property
    def slurm_conf(self) -> Path:
        """Path for `SLURM_CONF`."""
        return self.etc / "slurm.conf"

    @property
    def hosts(self) -> Path:
        """`/etc/hosts` of the nodes."""
        return self.etc / "hosts"

    @property
    def resolver(self) -> Path:
        """`/etc/resolv.conf` of the nodes."""
        return self.etc / "resolv.conf"

    @property
    def munge_key(self) -> Path:
        """The key of this cluster alone."""
        return self.etc / "munge.key"

    @property
    def munge_socket(self) -> Path:
        """Where the munged of this cluster listens."""
        return self.run / "munge.sock"

    @property
    def sql_socket(self) -> Path:
        """Where the MariaDB of this cluster listens."""
        return self.run / "sql.sock"

    @property
    def database(self) -> Path:
        """Tables of MariaDB."""
        return self.state_dir / "mysql"

    @property
    def gpu_devices(self) -> Path:
        """Character devices that pass for GPUs."""
        return self.state_dir / "dev"

    def pid_file(self, daemon: str) -> Path:
        """Return the file that a daemon itself writes its pid to."""
        return self.run / f"{daemon}.pid"

    def log_file(self, name: str) -> Path:
        """Return the log of a daemon or of a node's pid 1."""
        return self.log / f"{name}.log"

    def node_identity(self, node: str) -> Path:
        """Return the file that identifies the pid 1 of a node."""
        return self.run / "nodes" / node

    def daemon_identity(self, daemon: str) -> Path:
        """Return the file that identifies a daemon."""
        return self.run / "daemons" / daemon

    def create(self, spec: ClusterSpec) -> None:
        """Make the directories.

        Raises
        ------
        ClusterError
            If the state directory holds anything but the logs of a start that failed.
        """
        if self.record.exists():
            raise ClusterError(
                f"{self.state_dir} already holds a cluster. Attach to it with "
                f"VirtualCluster.attach, stop it, or use another state_dir."
            )
        self.state_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        # mkdtemp makes its directory private, but jobs of other users read slurm.conf here.
        self.state_dir.chmod(0o755)
        if self.log.exists():
            shutil.rmtree(self.log)
        if any(self.state_dir.iterdir()):
            raise ClusterError(
                f"state_dir={self.state_dir} is not empty, and everything in it would be removed "
                f"when the cluster stops. Use an empty or a new directory."
            )
        for directory in (self.etc, self.log, self.run, self.run / "nodes", self.run / "daemons"):
            directory.mkdir()
        for name in ("ctld", "dev"):
            (self.state_dir / name).mkdir()
        for node in spec.node_names:
            (self.state_dir / "spool" / node).mkdir(parents=True)
            (self.state_dir / "tmp" / node).mkdir(parents=True)

    def remove(self, *, keep_logs: bool) -> None:
        """Remove the state directory, or everything in it but the logs."""
        # The record goes last: until then an interrupted removal can be repeated by attaching.
        for path in self.state_dir.iterdir():
            if path == self.record or (path == self.log and keep_logs):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.record.unlink(missing_ok=True)
        if not keep_logs:
            self.state_dir.rmdir()
