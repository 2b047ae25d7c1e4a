"""``ray.air.integrations.wandb``: the same as in `hpctrain.callbacks`."""

from hpctrain.callbacks import WandbLoggerCallback as WandbLoggerCallback
from hpctrain.callbacks import setup_wandb as setup_wandb
