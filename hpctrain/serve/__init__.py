"""Predictors over HTTP: ``hpctrain serve CHECKPOINT``.

Needs ``pip install 'hpctrain[serve]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.serve.app import make_app as make_app
    from hpctrain.serve.guard import Limits as Limits
    from hpctrain.serve.model import ServedModel as ServedModel
    from hpctrain.serve.server import serve as serve

_HOME_OF = {"Limits": "guard", "ServedModel": "model", "make_app": "app", "serve": "server"}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
