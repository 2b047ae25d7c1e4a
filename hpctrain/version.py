"""The version of hpctrain, defined only here."""

__version__ = "0.1.0"
