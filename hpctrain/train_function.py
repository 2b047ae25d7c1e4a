"""The signature of a training function."""

from __future__ import annotations

import inspect
from typing import Any

from hpctrain.errors import ConfigError


def takes_config(train_loop: Any) -> bool:
    """Return whether a training function takes the configuration.

    Not collective.

    Raises
    ------
    ConfigError
        If it is not a function, or one of which a call runs nothing, has no signature, needs more
        than one argument, or one by name.
    """
    if not callable(train_loop):
        raise ConfigError(
            f"train_loop_per_worker={train_loop!r} is not a function. Pass the function itself, "
            f"without calling it."
        )
    if kind := kind_not_run_by_a_call(train_loop):
        name = getattr(train_loop, "__name__", repr(train_loop))
        raise ConfigError(
            f"{name} is {kind}, of which a call runs nothing. Pass a function that trains when it "
            f"is called: for an async one, lambda config: asyncio.run({name}(config))."
        )
    try:
        parameters = inspect.signature(train_loop).parameters.values()
    except ValueError as error:
        raise ConfigError(
            f"train_loop_per_worker={train_loop!r} has no signature, like many functions "
            f"in C. Wrap it in a function of your own, and pass that."
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
    if named := needed_by_name(train_loop):
        name = getattr(train_loop, "__name__", repr(train_loop))
        raise ConfigError(
            f"{name}(*, {', '.join(named)}) needs an argument by name. A training function is "
            f"called with the train_loop_config, or nothing. Give {named[0]} a default, or put it "
            f"into train_loop_config."
        )
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return bool(positional)


def kind_not_run_by_a_call(function: Any) -> str | None:
    """Return what a function is whose call runs nothing of it: async or a generator; else None.

    Not collective. A decorator that is neither may run what it wraps.
    """
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004
        for is_kind, kind in _NOT_RUN_BY_A_CALL:
            if is_kind(each):
                return kind
    return None


def refuse_unrun(returned: Any) -> None:
    """Refuse what a function of `kind_not_run_by_a_call` returns. Not collective.

    It is for lambdas and decorators that return what they call.

    Raises
    ------
    ConfigError
        If nothing of it has run.
    """
    is_new = (
        (inspect.iscoroutine(returned) and inspect.getcoroutinestate(returned) == "CORO_CREATED")
        or (inspect.isgenerator(returned) and inspect.getgeneratorstate(returned) == "GEN_CREATED")
        or inspect.isasyncgen(returned)
    )
    if is_new:
        if inspect.iscoroutine(returned):
            # Python would warn that it was never awaited.
            returned.close()
        raise ConfigError(
            f"the training function returned {returned!r}, of which nothing has run, and it made "
            f"no report. Let it run what it calls: asyncio.run() an async function, iterate over a "
            f"generator."
        )


def needed_by_name(function: Any) -> list[str]:
    """Return the arguments that have to be given to a function by name.

    Not collective. A decorator with `functools.wraps` may give them to the function inside: only
    what the outer one takes itself counts.
    """
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]


_NOT_RUN_BY_A_CALL = (
    (inspect.isgeneratorfunction, "a generator"),
    (inspect.iscoroutinefunction, "an async function"),
    (inspect.isasyncgenfunction, "an async generator"),
)
