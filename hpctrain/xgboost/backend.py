"""The backend: XGBoost's own communicator over the MPI ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hpctrain.backend import Backend, BackendContext
from hpctrain.errors import ConfigError, LaunchError

if TYPE_CHECKING:
    from hpctrain.xgboost.config import XGBoostConfig


class XGBoostBackend(Backend):
    """Runs a tracker on rank 0 and connects every rank to it: XGBoost's rank is the MPI rank."""

    _tracker: Any = None

    def on_start(self, context: BackendContext, config: XGBoostConfig) -> None:
        """Connect the ranks. Collective.

        Raises
        ------
        ConfigError
            If xgboost is missing.
        LaunchError
            If ranks cannot connect to rank 0.
        """
        try:
            from xgboost import collective
            from xgboost.core import XGBoostError
            from xgboost.tracker import RabitTracker
        except ImportError as error:
            raise ConfigError(
                f"the workers cannot import xgboost: {error}. Run: pip install "
                f"'hpctrain[xgboost]'. For machines without a GPU, the package xgboost-cpu is "
                f"smaller."
            ) from error
        world = context.world
        if world.world_size == 1:
            return
        connect_s = math.ceil(config.connect_timeout_s)
        arguments = None
        if world.world_rank == 0:
            self._tracker = RabitTracker(
                n_workers=world.world_size,
                host_ip=context.reachable_address(),
                sortby="task",
                timeout=connect_s,
            )
            self._tracker.start()
            arguments = self._tracker.worker_args()
        arguments = context.comm.bcast(arguments)
        try:
            collective.init(
                **arguments,
                # XGBoost sorts its ranks by this text.
                dmlc_task_id=f"{world.world_rank:06d}",
                dmlc_timeout=math.ceil(config.timeout_s),
            )
        except XGBoostError as error:
            raise LaunchError(
                f"rank {world.world_rank} on {world.hostname} cannot join XGBoost's tracker at "
                f"{arguments.get('dmlc_tracker_uri')}:{arguments.get('dmlc_tracker_port')}: "
                f"{_reason(error)}. Compute nodes must reach each other over TCP, on "
                f"any port; ask the site whether a firewall is between them."
            ) from error
        if (rank := collective.get_rank()) != world.world_rank:
            raise LaunchError(
                f"MPI rank {world.world_rank} of {world.world_size} has XGBoost's rank {rank}, but "
                f"both must be equal. This version of xgboost sorts its ranks differently: use the "
                f"version that hpctrain is tested with."
            )

    def on_shutdown(self, context: BackendContext, config: XGBoostConfig) -> None:
        """Disconnect the ranks. Collective."""
        if context.world.world_size == 1:
            return
        from xgboost import collective

        collective.finalize()
        if self._tracker is not None:
            self._tracker.wait_for(math.ceil(config.connect_timeout_s))
            self._tracker = None


def _reason(error: Exception) -> str:
    """Return XGBoost's messages without their places in C++, ``- [socket.cc:189|20:07:45]: ``."""
    lines = str(error).splitlines()
    said = [line.partition("]: ")[2] for line in lines if line.startswith("- [")]
    return "; ".join(text.rstrip(".") for text in said) or lines[0]
