"""Lightning's strategies by the names of Ray Train.

`hpctrain.lightning.prepare_trainer` gives any strategy this run's ranks and devices, so they need
no classes of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lightning.package import import_pytorch

if TYPE_CHECKING:
    from lightning.pytorch.strategies import DDPStrategy as RayDDPStrategy
    from lightning.pytorch.strategies import DeepSpeedStrategy as RayDeepSpeedStrategy
    from lightning.pytorch.strategies import FSDPStrategy as RayFSDPStrategy
else:
    _strategies = import_pytorch("strategies")
    RayDDPStrategy = _strategies.DDPStrategy
    RayDeepSpeedStrategy = _strategies.DeepSpeedStrategy
    RayFSDPStrategy = _strategies.FSDPStrategy

__all__ = ["RayDDPStrategy", "RayDeepSpeedStrategy", "RayFSDPStrategy"]
