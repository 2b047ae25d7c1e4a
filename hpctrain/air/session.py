"""``ray.air.session``: the same functions as in `hpctrain.session`."""

from hpctrain.session import *  # noqa: F403
from hpctrain.session import __all__ as __all__
