"""The one package that runs commands of Slurm, or uses submitit.

``client`` runs a command, ``output`` reads what it printed; ``job``, ``nodes``, ``probe`` and
``submit`` ask and act. What follows from the answers is decided elsewhere.
"""
