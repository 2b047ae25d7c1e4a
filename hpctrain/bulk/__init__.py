"""The bytes of checkpoints at the speed of the disk; knows no framework, and nothing of a run."""
