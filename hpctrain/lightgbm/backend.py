"""The backend: LightGBM's network over the MPI ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpctrain.backend import Backend, BackendContext
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    from hpctrain.lightgbm.config import LightGBMConfig


class LightGBMBackend(Backend):
    """Connects LightGBM's ranks: LightGBM's rank is the MPI rank."""

    _disconnect: Callable[[], None] | None = None

    def on_start(self, context: BackendContext, config: LightGBMConfig) -> None:
        """Connect the ranks. Collective.

        Raises
        ------
        ConfigError
            If lightgbm is missing.
        LaunchError
            If ranks cannot connect.
        """
        try:
            import lightgbm  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"the workers cannot import lightgbm: {error}. Run: pip install "
                f"'hpctrain[lightgbm]'"
            ) from error
        from hpctrain.lightgbm import network

        if context.world.world_size == 1:
            return
        if network.wants_sockets(context, config.network):
            network.connect_by_sockets(context, timeout_s=config.timeout_s)
            self._disconnect = network.disconnect_sockets
        else:
            comm: Any = context.comm
            self._disconnect = network.connect_by_mpi(comm)

    def on_shutdown(self, context: BackendContext, config: LightGBMConfig) -> None:
        """Disconnect the ranks. Collective."""
        if self._disconnect is not None:
            self._disconnect()
            self._disconnect = None
