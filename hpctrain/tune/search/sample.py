"""``ray.tune.search.sample``: the same domains and functions as in `hpctrain.tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.tune.domains import Categorical as Categorical
    from hpctrain.tune.domains import Domain as Domain
    from hpctrain.tune.domains import Float as Float
    from hpctrain.tune.domains import Function as Function
    from hpctrain.tune.domains import Integer as Integer
    from hpctrain.tune.domains import choice as choice
    from hpctrain.tune.domains import lograndint as lograndint
    from hpctrain.tune.domains import loguniform as loguniform
    from hpctrain.tune.domains import qlograndint as qlograndint
    from hpctrain.tune.domains import qloguniform as qloguniform
    from hpctrain.tune.domains import qrandint as qrandint
    from hpctrain.tune.domains import qrandn as qrandn
    from hpctrain.tune.domains import quniform as quniform
    from hpctrain.tune.domains import randint as randint
    from hpctrain.tune.domains import randn as randn
    from hpctrain.tune.domains import sample_from as sample_from
    from hpctrain.tune.domains import uniform as uniform

_NAMES = (
    "Categorical",
    "Domain",
    "Float",
    "Function",
    "Integer",
    "choice",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
)

__all__ = list(_NAMES)

__getattr__, __dir__ = at_first_use(__name__, dict.fromkeys(_NAMES, "..domains"))
