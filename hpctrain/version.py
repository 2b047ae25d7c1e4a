"""The version of hpctrain, said here only."""

__version__ = "0.1.0"
