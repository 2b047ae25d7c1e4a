"""What the fields of a configuration may be: one rule for each, in one declaration.

A rule receives the name of the field and a value; it returns the value to store, or raises
ConfigError with the value, the rule and the next step.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from os import PathLike, fspath
from typing import Any, TypeVar

from hpctrain.checks import (
    check_choice,
    check_count,
    check_seconds,
    check_text,
    check_type,
    explain_fields,
    is_number,
    shown,
)
from hpctrain.errors import ConfigError, UnknownFieldError
from hpctrain.unresolved import find_unresolved

T = TypeVar("T")
Rule = Callable[[str, Any], Any]


def checked(
    *, renamed: Mapping[str, str] | None = None, **rules: Rule
) -> Callable[[type[T]], type[T]]:
    """Make a configuration, a dataclass, check its fields; each needs a rule.

    Its ``__post_init__`` then checks its fields against each other. The error for an unknown
    keyword lists the valid names, unlike Python's TypeError.

    Parameters
    ----------
    renamed
        Former names of fields, which are still accepted, with a FutureWarning.
    **rules
        The rules of the fields.
    """
    former = {**(renamed or {})}

    def decorate(kind: type[T]) -> type[T]:
        create = kind.__init__
        names = [f.name for f in fields(kind) if f.init]  # type: ignore[arg-type]
        required = [f.name for f in fields(kind) if _is_required(f)]  # type: ignore[arg-type]
        all_rules = {**getattr(kind, "_rules", {}), **rules}
        if set(all_rules) != set(names):
            raise TypeError(f"{kind.__name__}: rules of {set(all_rules) ^ set(names)}")

        @functools.wraps(create)
        def __init__(self: T, *args: object, **values: object) -> None:  # noqa: N807
            values = _with_present_names(kind.__name__, former, values)
            unknown = [name for name in values if name not in names]
            missing = [name for name in required if name not in values]
            if missing and not args and not unknown:
                raise ConfigError(f"{kind.__name__} needs {missing[0]}: give {missing[0]}=.")
            if args or unknown:
                raise UnknownFieldError(explain_fields(kind.__name__, names, args, unknown))
            open_fields = {name for name in values if any(find_unresolved(values[name]))}
            kept = {
                name: all_rules[name](f"{kind.__name__}({name}=...)", value)
                for name, value in values.items()
                if name not in open_fields
                and (value is not None or not isinstance(all_rules[name], or_default))
            }
            if open_fields:
                _set_fields(self, {**kept, **{name: values[name] for name in open_fields}})
            else:
                create(self, **kept)

        kind.__init__ = __init__  # type: ignore[method-assign, assignment]
        kind._rules = all_rules  # type: ignore[attr-defined]
        kind._former_names = former  # type: ignore[attr-defined]
        for old, new in former.items():
            setattr(kind, old, _former_name(kind.__name__, old, new))
        return kind

    return decorate


def _set_fields(config: Any, values: Mapping[str, Any]) -> None:
    """Set the fields of a configuration whose others cannot be checked yet: a sweep chooses some.

    `hpctrain.tune` creates it anew with what it has chosen.
    """
    for field in fields(config):
        if field.name in values:
            value = values[field.name]
        else:
            value = field.default if field.default_factory is MISSING else field.default_factory()
        # It is frozen.
        object.__setattr__(config, field.name, value)


def _with_present_names(
    owner: str, former: Mapping[str, str], values: Mapping[str, Any]
) -> dict[str, Any]:
    for old in former.keys() & values.keys():
        new = former[old]
        if new in values:
            raise ConfigError(f"{owner}({old}=..., {new}=...): both are the same. Leave out {old}.")
        warnings.warn(f"{owner}({old}=...) is now {owner}({new}=...)", FutureWarning, stacklevel=3)
    return {former.get(name, name): value for name, value in values.items()}


def _former_name(owner: str, old: str, new: str) -> property:
    def read(self: Any) -> Any:
        warnings.warn(f"{owner}.{old} is now {owner}.{new}", FutureWarning, stacklevel=2)
        return getattr(self, new)

    return property(read, doc=f"Former name of ``{new}``.")


def _is_required(field: Field[Any]) -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING


def optional(rule: Rule) -> Rule:
    """Return a rule that accepts None, too."""
    return lambda what, value: None if value is None else rule(what, value)


class or_default:  # noqa: N801
    """The rule of a field for which None means its default, as in Ray Train.

    Parameters
    ----------
    rule
        Of all other values.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def __call__(self, what: str, value: Any) -> Any:
        """Return the stored form of a value that is not None."""
        return self._rule(what, value)


def count(at_least: int) -> Rule:
    """Return the rule of a whole number."""

    def check(what: str, value: Any) -> Any:
        check_count(what, value, at_least=at_least)
        return value

    return check


def seconds(what: str, value: Any) -> Any:
    """Accept a number of seconds above 0."""
    check_seconds(what, value)
    return value


def number(at_least: float, *, explain: str) -> Rule:
    """Return the rule of a finite number."""

    def check(what: str, value: Any) -> Any:
        if not is_number(value):
            raise ConfigError(f"{with_value(what, value)} is not a finite number. Give {explain}")
        if value < at_least:
            raise ConfigError(f"{with_value(what, value)} is too small. Give {explain}")
        return value

    return check


def choice(*choices: object) -> Rule:
    """Return the rule of one of several values."""

    def check(what: str, value: Any) -> Any:
        check_choice(what, value, choices)
        return value

    return check


def kind(*kinds: type) -> Rule:
    """Return the rule of a value of some types."""

    def check(what: str, value: Any) -> Any:
        check_type(what, value, *kinds)
        return value

    return check


def line(*, otherwise: str) -> Rule:
    """Return the rule of a text that is one line of printable characters.

    Parameters
    ----------
    otherwise
        Other values of the field, for the message.
    """

    def check(what: str, value: Any) -> Any:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise ConfigError(
                f"{with_value(what, value)}: one non-empty line is needed, {otherwise}."
            )
        return value

    return check


def text(what: str, value: Any) -> Any:
    """Accept non-empty text of printable characters."""
    check_text(what, value)
    if not value.isprintable():
        raise ConfigError(
            f"{what} is {shown(value)}. Names consist of printable characters: correct it."
        )
    return value


def path(what: str, value: Any) -> Any:
    """Accept a path, and return it as text."""
    check_type(what, value, str, PathLike)
    try:
        value = fspath(value)
    except TypeError as error:
        raise ConfigError(f"{what} is {shown(value)}, which is not a path: {error}.") from error
    check_text(what, value)
    if "\0" in value or "\n" in value or "\r" in value:
        raise ConfigError(
            f"{what} is {shown(value)}. A path has no line breaks and no NUL: choose another one."
        )
    return value


def mapping(what_keys: str = "", rule: Rule | None = None) -> Rule:
    """Return the rule of a mapping from names to values of a rule; it returns a copy.

    Parameters
    ----------
    what_keys
        The kind of the names, for the message.
    rule
        Of the values.
    """

    def check(what: str, value: Any) -> Any:
        check_type(what, value, Mapping)
        value = dict(value)
        for name, item in value.items():
            if not isinstance(name, str) or not name or not name.isprintable():
                raise ConfigError(
                    f"{what} has the key {shown(name)}. Keys are names{what_keys}: use text."
                )
            if rule is not None:
                rule(f"{what.replace('...', '{' + shown(name) + ': ...}')}", item)
        return value

    return check


def several(rule: Rule, *, of: str = "strings") -> Rule:
    """Return the rule of a sequence whose items follow a rule; it returns a tuple."""

    def check(what: str, value: Any) -> Any:
        if isinstance(value, str):
            name = what.partition("(")[2].partition("=")[0]
            raise ConfigError(
                f"{with_value(what, value)} is a string. It is a list of {of}: "
                f"{name}=[{shown(value)}]."
            )
        check_type(what, value, Sequence)
        item = what.replace("...", "[...]")
        return tuple(rule(item, one) for one in value)

    return check


def with_value(what: str, value: object) -> str:
    """Return the call of a field with its value."""
    return what.replace("...", shown(value))
