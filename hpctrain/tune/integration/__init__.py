"""``ray.tune.integration``: the classes of each framework."""
