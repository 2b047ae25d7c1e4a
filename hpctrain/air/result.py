"""``ray.air.result``: the same class as in `hpctrain`."""

from hpctrain.result import Result

__all__ = ["Result"]
