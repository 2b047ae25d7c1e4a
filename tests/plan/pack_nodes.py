"""The script by which a node gets a packed environment, run as on a node."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpctrain.pack.header import EnvironmentPack
from hpctrain.plan.environment_pack import unpack_argv, unpacked_at

TIMEOUT_S = 30


class Node:
    """The process of one job on a node."""

    def __init__(
        self,
        pack: EnvironmentPack,
        place: Path,
        *,
        copy: bytes | None = None,
        before: Callable[[Path], None] | None = None,
        patience_s: float = 20,
        path: str = "",
        user: int | None = None,
        name: str = "node1",
        program: bytes = b"",
    ) -> None:
        self._pack, self._place = pack, place
        self._user = os.geteuid() if user is None else user
        self.run = os.urandom(4).hex()
        self.copy = place / f"hpctrain-packs-{self._user}-{os.urandom(4).hex()}.copy"
        if copy is not None:
            self.copy.write_bytes(copy)
            if user is not None:
                os.chown(self.copy, user, user)
        if before is not None:
            before(self.copy)
        self._name = name
        variables = {**os.environ, "SLURMD_NODENAME": name}
        variables["PATH"] = f"{path}:{variables['PATH']}"
        self.process = subprocess.Popen(
            unpack_argv(
                pack,
                place=str(place),
                copy=str(self.copy),
                patience_s=patience_s,
                run=self.run,
                is_offered=bool(program),
            ),
            stdin=subprocess.PIPE if program else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=variables,
            start_new_session=True,
            user=user,
        )
        if self.process.stdin is not None:
            # As srun does; one that needs nothing of it reads nothing.
            os.write(self.process.stdin.fileno(), program)
            self.process.stdin.close()

    def own(self) -> Path:
        """Return where its environment is."""
        pack, place = self._pack, str(self._place)
        return Path(unpacked_at(pack, place=place, user=self._user, run=self.run))

    def answer(self) -> list[str]:
        """Return what it prints until it is ready, or has failed."""
        lines = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.append(line.removeprefix(f"hpctrain-pack {self._name} ").rstrip())
            if lines[-1] == "ready":
                break
        return lines

    def leave(self) -> None:
        """Let it remove the copy if it is the last one."""
        for _ in range(TIMEOUT_S * 2):
            self.process.send_signal(signal.SIGUSR1)
            with suppress(subprocess.TimeoutExpired):
                # A single one is without effect now and then, see NodeEnvironment.
                self.process.wait(0.2)
                break
        assert self.process.returncode in (0, 66)


class Nodes:
    """Starts such processes, and ends them."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []

    def __call__(self, *args: object, **options: object) -> Node:
        """Start one."""
        self._nodes.append(Node(*args, **options))  # type: ignore[arg-type]
        return self._nodes[-1]

    def close(self) -> None:
        """End them: what is left of one waits in a process of its own."""
        for node in self._nodes:
            if node.process.poll() is None:
                node.leave()
            assert node.process.stdout is not None
            node.process.stdout.close()
