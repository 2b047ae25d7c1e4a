"""``ray.air.integrations.mlflow``: the same as in `hpctrain.callbacks`."""

from hpctrain.callbacks import MLflowLoggerCallback as MLflowLoggerCallback
from hpctrain.callbacks import setup_mlflow as setup_mlflow
