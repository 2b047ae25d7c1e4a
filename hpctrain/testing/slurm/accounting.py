"""The accounting database: MariaDB and slurmdbd on the head.

MariaDB listens on a socket in the state directory only, and knows its users by their uid: there is
no port and no password.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from hpctrain.testing.slurm.addresses import Addresses
from hpctrain.testing.slurm.configuration import CLUSTER_NAME, DATABASE, user_name
from hpctrain.testing.slurm.daemons import Daemon, is_listening
from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.layout import Layout
from hpctrain.testing.slurm.places import Place
from hpctrain.testing.slurm.processes import run_bounded, tail

ACCOUNT = "hpctrain"
"""The one account that jobs may be charged to, beside Slurm's own ``root``."""

# Small, and without care for what a power failure would lose.
_SERVER_OPTIONS = (
    "--skip-networking",
    "--skip-log-bin",
    "--performance-schema=OFF",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=8M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-lock-wait-timeout=900",
)


def mariadb(place: Place, layout: Layout) -> Daemon:
    """Return the database server."""
    server = [
        *("mariadbd", "--no-defaults", f"--user={user_name()}", f"--datadir={layout.database}"),
        *(f"--socket={layout.sql_socket}", f"--pid-file={layout.pid_file('mariadb')}"),
        *_SERVER_OPTIONS,
    ]
    return Daemon(
        name="mariadb",
        # Unlike Slurm's daemons, it does not put itself into the background.
        argv=("setsid", "--fork", *server),
        place=place,
        layout=layout,
        is_ready=lambda: _sql(place, layout, "select 1") == 0,
    )


def slurmdbd(place: Place, layout: Layout, addresses: Addresses) -> Daemon:
    """Return Slurm's accounting daemon."""
    return Daemon(
        name="slurmdbd",
        argv=("slurmdbd",),
        place=place,
        layout=layout,
        environ={"MYSQL_UNIX_PORT": str(layout.sql_socket)},
        is_ready=lambda: is_listening(addresses.head, addresses.accounting_port),
    )


def start_accounting(
    place: Place, layout: Layout, addresses: Addresses, *, database_cache: Path | None
) -> None:
    """Start both daemons, and register the cluster, the account and the user.

    Parameters
    ----------
    place
        The head.
    layout
        Files of the cluster.
    addresses
        Addresses of the cluster.
    database_cache
        Directory which keeps a copy of the empty database: making it takes seconds.
    """
    _make_database(layout, database_cache)
    mariadb(place, layout).start()
    # slurmdbd makes it too, but with libmariadb 11.8 every query of that connection fails then
    # ("exceeds maximum allowed number of columns (=0)").
    if _sql(place, layout, f"create database {DATABASE}") != 0:
        raise ClusterError(f"create database {DATABASE} failed.{tail(layout.log_file('mariadb'))}")
    slurmdbd(place, layout, addresses).start()
    for entity in (
        ["cluster", CLUSTER_NAME],
        ["account", ACCOUNT, f"cluster={CLUSTER_NAME}"],
        ["user", user_name(), f"account={ACCOUNT}"],
    ):
        log = layout.log_file("sacctmgr")
        with log.open("ab") as output:
            add = place.command(["sacctmgr", "--immediate", "add", *entity])
            if run_bounded(add, timeout_s=30, output=output).returncode != 0:
                raise ClusterError(f"sacctmgr add {' '.join(entity)} failed.{tail(log)}")


def _make_database(layout: Layout, cache: Path | None) -> None:
    if cache is None:
        _install_database(layout.database, layout)
        return
    # An empty database is of one version of MariaDB and of one user.
    version = run_bounded(Place().command(["mariadbd", "--version"]), timeout_s=30).stdout
    key = hashlib.sha256(f"{version} {user_name()}".encode()).hexdigest()[:16]
    cached = cache / f"mariadb-{key}"
    if not cached.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            fresh = Path(scratch, "mysql")
            _install_database(fresh, layout)
            try:
                os.rename(fresh, cached)
            except OSError:
                # Another cluster was faster.
                if not cached.exists():
                    raise
    shutil.copytree(cached, layout.database)


def _install_database(directory: Path, layout: Layout) -> None:
    log = layout.log_file("mariadb-install-db")
    install = [
        *("mariadb-install-db", "--no-defaults", f"--datadir={directory}"),
        *(f"--user={user_name()}", f"--auth-root-socket-user={user_name()}"),
        *("--auth-root-authentication-method=socket", "--skip-test-db", "--skip-name-resolve"),
        "--innodb-log-file-size=8M",
    ]
    with log.open("ab") as output:
        if run_bounded(Place().command(install), timeout_s=120, output=output).returncode != 0:
            raise ClusterError(f"mariadb-install-db failed.{tail(log)}")


def _sql(place: Place, layout: Layout, statement: str) -> int:
    client = [
        *("mariadb", "--no-defaults", f"--user={user_name()}", f"--socket={layout.sql_socket}"),
        f"--execute={statement}",
    ]
    return run_bounded(place.command(client), timeout_s=10).returncode
