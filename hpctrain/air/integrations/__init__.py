"""``ray.air.integrations``: trackers, which are in `hpctrain.callbacks`."""
