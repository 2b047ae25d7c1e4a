"""Pure translation: from a user's request to commands and resources.

Nothing here starts a process, queries Slurm or reads the environment; facts about the site are
arguments. This makes ``--dry-run`` and the golden files possible.
"""
