"""``ray.air.checkpoint``: the same class as in `hpctrain`."""

from hpctrain.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
