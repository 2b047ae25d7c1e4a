"""A page about a run: its curves, its attempts, its checkpoints, and where its time went.

Only the files of the run directory are read, so it says what they know and nothing else.
"""
