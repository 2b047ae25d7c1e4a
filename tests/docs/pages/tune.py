"""The blocks of docs/tune.rst."""

# block: tune-sweep

assert len(results) == 4
assert not results.errors
first = results

# block: tune-trainer
assert len(results) == 4
assert not results.errors

# block: tune-pbt
assert len(population) == 3
assert not population.errors

# block: tune-optuna
assert len(results) == 3
assert not results.errors

# block: tune-restore
assert len(results) == len(first)
assert results.get_best_result().config == best.config

# block: tune-allocation
assert len(results) == len(first)
