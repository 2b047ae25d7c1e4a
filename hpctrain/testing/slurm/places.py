"""Where a command runs: on the host, or inside the namespaces of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpctrain.testing.slurm.components import SEARCH_PATH
from hpctrain.testing.slurm.processes import HOST_PROC, ProcessIdentity


@dataclass(frozen=True, kw_only=True)
class Place:
    """The host itself, or the node whose pid 1 is ``init``."""

    init: ProcessIdentity | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that every command gets."""

    @property
    def proc(self) -> Path:
        """The proc file system of this place, as a path on the host."""
        return HOST_PROC if self.init is None else Path(f"/proc/{self.init.pid}/root/proc")

    def command(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "/",
        environ: Mapping[str, str] | None = None,
        inherit: bool = True,
    ) -> list[str]:
        """Return the argv that runs ``argv`` in this place when it is run on the host.

        Parameters
        ----------
        argv
            What to run. Programs in sbin are found too.
        cwd
            Its working directory, which must exist in this place.
        environ
            More variables for it.
        inherit
            Whether it also gets the variables of the calling process. Daemons do not.
        """
        enter: list[str] = []
        if self.init is not None:
            namespaces = ("--net", "--uts", "--ipc", "--pid", "--mount")
            enter = ["nsenter", f"--target={self.init.pid}", *namespaces, "--"]
        variables = {"PATH": SEARCH_PATH, **self.environ, **(environ or {})}
        return [
            *enter,
            "env",
            f"--chdir={cwd}",
            *([] if inherit else ["--ignore-environment"]),
            *(f"{name}={value}" for name, value in variables.items()),
            *argv,
        ]
