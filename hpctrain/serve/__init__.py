"""Predictors over HTTP: ``hpctrain serve CHECKPOINT``.

Needs ``pip install 'hpctrain[serve]'``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.serve.app import make_app as make_app
    from hpctrain.serve.model import ServedModel as ServedModel
    from hpctrain.serve.server import serve as serve

_HOME_OF = {"ServedModel": "model", "make_app": "app", "serve": "server"}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hpctrain.serve' has no attribute {name!r}")
    value = getattr(import_module(f"hpctrain.serve.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
