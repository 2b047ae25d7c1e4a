"""What a training function may be."""

from __future__ import annotations

import inspect
from typing import Any

from hpctrain.errors import ConfigError


def takes_config(train_loop: Any) -> bool:
    """Return whether a training function wants the configuration.

    Not collective.

    Raises
    ------
    ConfigError
        If it is not a function, does not tell its arguments, or needs more than one.
    """
    if not callable(train_loop):
        raise ConfigError(
            f"train_loop_per_worker={train_loop!r} is not a function. Give the function itself, "
            f"without calling it."
        )
    try:
        parameters = inspect.signature(train_loop).parameters.values()
    except ValueError as error:
        raise ConfigError(
            f"train_loop_per_worker={train_loop!r} does not tell its arguments, as many functions "
            f"written in C. Call it in a function of your own, and give that."
        ) from error
    needed = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if len(needed) > 1:
        name = getattr(train_loop, "__name__", repr(train_loop))
        raise ConfigError(
            f"{name}({', '.join(p.name for p in needed)}) takes {len(needed)} arguments. A "
            f"training function takes none, or one: the train_loop_config. Put the rest into "
            f"train_loop_config."
        )
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return bool(positional)
