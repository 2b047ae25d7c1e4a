"""Arguments of a predictor, checked before any rank starts."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpctrain.checks import did_you_mean
from hpctrain.errors import UnknownFieldError
from hpctrain.predict.predictor import Predictor
from hpctrain.predict.scoring_workers import NAMES

# Arguments of libraries, such as output_margin, are less similar to hpctrain's.
_CERTAIN = 0.8


def check_arguments(
    predictor_cls: type[Predictor], given: Mapping[str, Any], *, own: Sequence[str]
) -> None:
    """Check that `BatchPredictor.predict` or the predictor has the given arguments.

    Not collective. If the predictor passes any argument to its model, only a name that is almost
    that of a known argument raises.

    Parameters
    ----------
    predictor_cls
        Class whose ``predict()`` takes them.
    given
        Arguments for it.
    own
        Names of the arguments of `BatchPredictor.predict`.

    Raises
    ------
    UnknownFieldError
        If one is unknown; the message suggests the most similar name.
    """
    hooks = [
        getattr(predictor_cls, name)
        for name in ("predict", "_predict_numpy", "_predict_pandas")
        if getattr(predictor_cls, name) is not getattr(Predictor, name)
    ]
    parameters = [one for hook in hooks for one in _parameters(hook)]
    named = dict.fromkeys(
        one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
    )
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    known = dict.fromkeys([*own, *named, *NAMES])
    for name in given:
        if name in named or (takes_any and not _is_slip(name, known)):
            continue
        meant = did_you_mean(name, known) or f"Use {', '.join(known)}."
        raise UnknownFieldError(
            f"BatchPredictor.predict() has no argument {name!r}, and neither has "
            f"{predictor_cls.__name__}. {meant}"
        )


def _parameters(hook: Any) -> list[inspect.Parameter]:
    # Without self and the batch.
    return list(inspect.signature(hook).parameters.values())[2:]


def _is_slip(name: str, known: Iterable[str]) -> bool:
    return bool(difflib.get_close_matches(name, list(known), n=1, cutoff=_CERTAIN))
