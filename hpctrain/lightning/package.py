"""Which Lightning a process uses: the packages lightning and pytorch_lightning are twins.

Their classes do not know each other, so all that is handed to a Trainer has to be of the one that
it is from.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hpctrain.errors import ConfigError

# By package: where its Trainer and its environments are.
_MODULES = {
    "lightning": ("lightning.pytorch", "lightning.fabric"),
    "pytorch_lightning": ("pytorch_lightning", "lightning_fabric"),
}


@cache
def find_package() -> str:
    """Return the Lightning that this process has imported, or else the one that is installed.

    Not collective. Where that leaves a choice it is ``lightning``; it is made once.

    Raises
    ------
    ConfigError
        If neither is installed.
    """
    for is_there in (_is_imported, _is_installed):
        if found := [package for package in _MODULES if is_there(package)]:
            return found[0]
    raise ConfigError(
        "Lightning is not installed here. Install it where the script and its workers run: pip "
        "install 'hpctrain[lightning]'. The package pytorch-lightning will do, too."
    )


def import_pytorch(module: str = "") -> Any:
    """Return Lightning's package for PyTorch, which has the Trainer, or a module of it.

    Not collective.
    """
    return _import(_MODULES[find_package()][0], module)


def import_fabric(module: str) -> Any:
    """Return a module of Lightning's package for what lies below its Trainer. Not collective."""
    return _import(_MODULES[find_package()][1], module)


def _import(package: str, module: str) -> Any:
    return import_module(f"{package}.{module}" if module else package)


def _is_imported(package: str) -> bool:
    return _MODULES[package][0] in sys.modules


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None
