"""`TorchConfig`: how torch.distributed is set up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hpctrain.backend import OF_EVERY_RANK, BackendConfig
from hpctrain.rules import checked, choice, line, optional, seconds


@checked(
    backend=optional(line(otherwise="such as 'nccl' or 'gloo', or None for what fits the workers")),
    init_method=choice("env", "tcp"),
    timeout_s=seconds,
)
@dataclass(frozen=True, kw_only=True)
class TorchConfig(BackendConfig):
    """How torch.distributed is set up."""

    preload: ClassVar[tuple[str, ...]] = (
        *OF_EVERY_RANK,
        "numpy",
        "torch",
        "torch.distributed",
        "torch.nn.parallel",
        "hpctrain.torch",
        "hpctrain.torch.config",
        "hpctrain.torch.flight_recorder",
        "hpctrain.torch.order",
        "hpctrain.torch.process_group",
        "hpctrain.torch.separate_models",
        "hpctrain.torch.step_profiler",
        "hpctrain.torch.step_times",
    )
    # The first optimizer of a process imports it, and so does DistributedDataParallel: 1.1 s of CPU
    # (measured with torch 2.13).
    preload_for_trials: ClassVar[tuple[str, ...]] = ("torch._dynamo",)

    backend: str | None = None
    """``nccl``, ``gloo``, or whatever else this torch has; ``cpu:gloo,cuda:nccl`` is one for each
    kind of device. None: nccl where workers have GPUs, gloo otherwise. Gloo listens at the address
    that the host name stands for: set ``GLOO_SOCKET_IFNAME`` where that is the wrong network."""
    init_method: Literal["env", "tcp"] = "env"
    """Ray Train's; no difference here. Ranks meet at a store whose port the kernel chooses, and
    ``MASTER_ADDR`` and ``MASTER_PORT`` lead to it."""
    timeout_s: float = 1800
    """Seconds after which a collective gives up."""

    _backend_path = "hpctrain.torch.process_group.TorchBackend"
