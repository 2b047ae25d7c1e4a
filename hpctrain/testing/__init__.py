"""What plugin authors and tests use: fakes, contract classes, a virtual Slurm cluster.

Nothing is imported here: every part is asked for by its own name, so that a test which needs one
of them does not pay for the others.
"""
