"""Pure translation: from what a user asks for to what is run, and on what.

Nothing here starts a process, asks Slurm or looks at the environment; what is known of the site
comes in as values. That is what makes ``--dry-run`` and the golden files possible.
"""
