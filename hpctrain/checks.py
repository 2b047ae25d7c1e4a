"""Checks of one field of a configuration, and how a configuration prints itself.

Each check raises ConfigError with the field and its value.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, TypeVar

from hpctrain.errors import ConfigError, UnknownFieldError
from hpctrain.ray_names import INSTEAD_OF_FIELDS

T = TypeVar("T")
N = TypeVar("N", bound="NamedArguments")

_LONGEST = 300
# Slurm, MPI and timers count in 32 bits.
_MOST = 2**31 - 1


def explain_fields(
    kind: str, names: Sequence[str], args: Sequence[object], unknown: Sequence[str]
) -> str:
    """Return why a configuration cannot be made of arguments. Not collective."""
    listed = f"It has {', '.join(names) or 'none'}."
    if not unknown:
        return f"{kind}({shown(args[0])}): pass values by name, as in {kind}(name=value). {listed}"
    if instead := INSTEAD_OF_FIELDS.get(kind, {}).get(unknown[0]):
        return f"{kind} has no field {unknown[0]!r}: {instead}"
    return f"{kind} has no field {unknown[0]!r}. {did_you_mean(unknown[0], names) or listed}"


class NamedArguments:
    """A class whose constructor refuses an unknown argument and lists its own.

    It applies to every subclass with its own constructor, whose signature stays.
    """

    _keeps_arguments: ClassVar[bool] = False
    """Whether an object remembers what it was constructed with."""
    _arguments: inspect.BoundArguments
    """What it was constructed with, except itself."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Wrap the constructor of a class."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _with_checked_arguments(cls)  # type: ignore[method-assign]


def _with_checked_arguments(kind: type[NamedArguments]) -> Callable[..., None]:
    create: Callable[..., None] = kind.__init__
    signature = inspect.signature(create)
    parameters = list(signature.parameters.values())[1:]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

    @functools.wraps(create)
    def __init__(self: object, *args: object, **values: object) -> None:  # noqa: N807
        try:
            bound = signature.bind(None, *args, **values)
        except TypeError as error:
            inherits = type(self).__init__ is __init__
            name = (type(self) if inherits else kind).__name__
            unknown = [given for given in values if given not in names]
            if unknown and not takes_any:
                meant = did_you_mean(unknown[0], names) or f"It has {', '.join(names) or 'none'}."
                raise UnknownFieldError(f"{name} has no argument {unknown[0]!r}. {meant}") from None
            rest = f" By name: {', '.join(by_name)}." if by_name else ""
            first = ", ".join(n for n in names if n not in by_name) or "none"
            raise UnknownFieldError(f"{name}(): {error}. By position: {first}.{rest}") from None
        if kind._keeps_arguments:
            # The constructor of a subclass comes first.
            vars(self).setdefault("_arguments", bound)
        create(self, *args, **values)

    return __init__


def construct_again(one: N, **changes: Any) -> N:
    """Return an object that is constructed as another one was, with other arguments.

    Not collective. The class keeps its arguments.
    """
    bound = one._arguments
    parameters = bound.signature.parameters
    rest = next((p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)
    arguments = {**bound.arguments}
    for name, value in changes.items():
        if name in parameters or rest is None:
            arguments[name] = value
        else:
            arguments[rest] = {**arguments.get(rest, {}), name: value}
    again = inspect.BoundArguments(bound.signature, arguments)
    return type(one)(*again.args[1:], **again.kwargs)


def did_you_mean(name: str, names: Iterable[Any]) -> str:
    """Return a question with the name that is most similar to an unknown one, or nothing.

    Not collective.

    Examples
    --------
    >>> did_you_mean("partiton", ["account", "partition"])
    "Did you mean 'partition'?"
    """
    # Every rank imports this module.
    import difflib

    close = difflib.get_close_matches(name, list(names), n=1)
    return f"Did you mean {close[0]!r}?" if close else ""


def shown(value: object) -> str:
    """Return a value for a message, shortened; never raises. Not collective."""
    try:
        text = repr(value)
    # An int of more than 4300 digits raises, and so may a user's class.
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def check_count(what: str, value: object, *, at_least: int, optional: bool = False) -> None:
    """Refuse everything except whole numbers of `at_least` or more."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(
            f"{what} is {shown(value)}. A whole number of {at_least} or more is needed."
        )
    if value < at_least:
        raise ConfigError(f"{what} is {shown(value)}. It must be {at_least} or more.")
    if value > _MOST:
        raise ConfigError(f"{what} is {shown(value)}. It must be {_MOST} or less.")


def is_number(value: object) -> bool:
    """Return whether a value is a finite number. Not collective."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max


def plain_number(value: Any) -> Any:
    """Return a number of numpy's as one of Python's; all else stays itself. Not collective.

    Examples
    --------
    >>> from numpy import int64
    >>> plain_number(int64(3)), plain_number("3")
    (3, '3')
    """
    if type(value) in (bool, int, float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def check_seconds(what: str, value: object) -> None:
    """Refuse everything except numbers above 0 for which a timer can wait."""
    if not is_number(value) or not 0 < value <= _MOST:  # type: ignore[operator]
        most = f", and at most {_MOST:.1g}," if is_number(value) and value > 0 else ""  # type: ignore[operator]
        raise ConfigError(f"{what} is {shown(value)}. A number of seconds above 0{most} is needed.")


def check_choice(what: str, value: object, choices: Sequence[object]) -> None:
    """Refuse everything except the choices."""
    # 1 == True.
    if any(isinstance(value, type(choice)) and value == choice for choice in choices) and (
        not isinstance(value, bool) or any(value is choice for choice in choices)
    ):
        return
    meant = did_you_mean(value, filter(_is_text, choices)) if isinstance(value, str) else ""
    raise ConfigError(
        f"{what} is {shown(value)}. One of {', '.join(map(repr, choices))} is needed."
        + (f" {meant}" if meant else "")
    )


def check_type(what: str, value: object, *kinds: type) -> None:
    """Refuse values of other types."""
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(
            f"{what} holds {shown(value)} of type {type(value).__name__}. A {wanted} is needed."
        )


def check_text(what: str, value: object) -> None:
    """Refuse everything except non-empty strings."""
    check_type(what, value, str)
    if not value:
        raise ConfigError(f"{what} is ''. Leave it out, or give a value.")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def given_or_default(what: str, value: object, kind: type[T]) -> T:
    """Return a value, or `kind()` for None, and refuse other types."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ConfigError(
            f"{what}={shown(value)} is of type {type(value).__name__}; type {kind.__name__} is "
            f"needed."
        )
    return value


def column_names(dataset: Any) -> list[str] | None:
    """Return the names of the columns of a `Dataset` or a DataFrame; None if it has none."""
    columns = getattr(dataset, "columns", None)
    names = columns() if callable(columns) else columns
    return None if names is None else list(map(str, names))


def check_column(what: str, column: str, *, dataset: str, columns: Iterable[object]) -> None:
    """Refuse a dataset that lacks a column which an argument of a trainer names."""
    names = sorted(map(str, columns))
    if column not in names:
        more = f" and {len(names) - 30} more" if len(names) > 30 else ""
        raise ConfigError(
            f"dataset {dataset!r} has no column {column!r}, which {what} names. It has "
            f"{names[:30]}{more}. Name one of these, or add the column to the dataset."
        )


def show_changes(config: Any) -> str:
    """Return a dataclass as the call that creates it, without default values.

    Not collective. It is a configuration's ``__repr__``.
    """
    changed = []
    for field in fields(config):
        value = getattr(config, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if default is MISSING or type(value) is not type(default) or value != default:
            changed.append(f"{field.name}={value!r}")
    return f"{type(config).__name__}({', '.join(changed)})"
