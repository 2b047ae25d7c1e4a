"""Packages that only some datasets need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hpctrain.errors import ConfigError


def require(package: str, *, to: str, extra: str = "data") -> Any:
    """Import a package.

    Not collective.

    Parameters
    ----------
    package
        Its name for ``import``.
    to
        What it is needed for, as in "to read Parquet files".
    extra
        The extra of hpctrain that installs it; empty if none does.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        install = f"hpctrain[{extra}]" if extra else package
        raise ConfigError(
            f"{error.name} is needed {to}, but is not installed. Run: pip install '{install}'"
        ) from error
