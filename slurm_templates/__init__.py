"""Batch script templates and site profiles; installed as ``hpctrain.slurm_templates``."""
