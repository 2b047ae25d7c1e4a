"""`HorovodConfig`: how Horovod's ranks find each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpctrain.backend import BackendConfig
from hpctrain.errors import ConfigError
from hpctrain.rules import checked, choice, count, line, optional, seconds, several


@checked(
    transport=choice("auto", "mpi", "gloo"),
    nics=optional(several(line(otherwise="the name of a network interface, such as 'eth0'"))),
    timeout_s=seconds,
    gloo_timeout_s=seconds,
    max_replacements=count(0),
)
@dataclass(frozen=True, kw_only=True)
class HorovodConfig(BackendConfig):
    """How Horovod's ranks find each other, and whether one that dies is replaced."""

    transport: Literal["auto", "mpi", "gloo"] = "auto"
    """What carries the tensors of CPUs, and all that Horovod agrees on. ``auto`` is MPI, on the
    communicator that the ranks have already, where the installed Horovod has it; Gloo otherwise."""
    nics: Sequence[str] | None = None
    """Network interfaces for Gloo; the first one that a node has is used. None: the one at
    which other nodes reach the node."""
    timeout_s: float = 300.0
    """Seconds that the workers of an elastic run wait for one that is being replaced."""
    gloo_timeout_s: float = 30.0
    """Seconds after which Gloo gives up on a rank that is silent; one that has died is noticed at
    once. MPI waits for ever: ``FailureConfig(hang_timeout_s=...)``."""
    max_replacements: int = 0
    """How many dead workers each rank replaces in an attempt, while the others keep their state.
    More than 0 is elastic: Gloo, and a training function that uses ``hvd.elastic.run``. With 0 an
    attempt ends with its first dead rank, and ``FailureConfig`` says what follows."""

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        if self.is_elastic and self.transport == "mpi":
            raise ConfigError(
                f"HorovodConfig(transport='mpi', max_replacements={self.max_replacements}): a "
                f"world of MPI cannot go on without one of its ranks. Elastic runs use "
                f"transport='gloo', which 'auto' chooses for them."
            )

    @property
    def is_elastic(self) -> bool:
        """Whether dead workers are replaced."""
        return self.max_replacements > 0

    _backend_path = "hpctrain.horovod.backend.HorovodBackend"
