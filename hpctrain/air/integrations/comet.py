"""``ray.air.integrations.comet``: the same as in `hpctrain.callbacks`."""

from hpctrain.callbacks import CometLoggerCallback as CometLoggerCallback
