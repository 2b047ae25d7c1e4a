"""A user's function with its arguments, or an instance of a user's class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

from hpctrain.checks import shown
from hpctrain.data.arguments import items_of, mapping
from hpctrain.errors import ConfigError

_ONE_CONSTRUCTS = Lock()


@dataclass(frozen=True)
class Call:
    """A callable for a row or a batch.

    A class is constructed at its first use in each process, once, as Ray's actors do.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    constructor_args: tuple[Any, ...] = ()
    constructor_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        function: Callable[..., Any],
        args: Iterable[Any] | None,
        kwargs: Mapping[str, Any] | None,
        constructor_args: Iterable[Any] | None = None,
        constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Call:
        """Return a call with arguments as Ray Data takes them.

        Not collective.

        Raises
        ------
        ConfigError
            If it cannot be called, or arguments of a constructor are given without a class.
        """
        if not callable(function):
            raise ConfigError(f"fn={shown(function)} cannot be called. Give a function or a class.")
        if isinstance(function, type) and not any("__call__" in vars(c) for c in function.__mro__):
            raise ConfigError(
                f"fn={function!r} is a class whose objects cannot be called. Define __call__(self, "
                f"batch), or give a function."
            )
        to_construct = (
            _positional("fn_constructor_args", constructor_args),
            _by_name("fn_constructor_kwargs", constructor_kwargs),
        )
        if any(to_construct) and not isinstance(function, type):
            raise ConfigError(
                f"fn_constructor_args and fn_constructor_kwargs are for a class, but "
                f"fn={function!r} is not one. Use fn_args and fn_kwargs for a function."
            )
        return Call(
            function, _positional("fn_args", args), _by_name("fn_kwargs", kwargs), *to_construct
        )

    @property
    def name(self) -> str:
        """Name of the function, for messages."""
        return getattr(self.function, "__name__", repr(self.function))

    @property
    def is_class(self) -> bool:
        """Whether an instance is called."""
        return isinstance(self.function, type)

    def __call__(self, value: Any) -> Any:
        """Return the result for a row or a batch. Not collective."""
        return self.bound()(value)

    def bound(self) -> Callable[[Any], Any]:
        """Return the callable with its arguments bound, for many rows. Not collective."""
        target: Callable[..., Any] = self._instance if self.is_class else self.function
        args, kwargs = self.args, self.kwargs
        return (lambda value: target(value, *args, **kwargs)) if args or kwargs else target

    @property
    def _instance(self) -> Any:
        with _ONE_CONSTRUCTS:
            return self._constructed

    @cached_property
    def _constructed(self) -> Any:
        return self.function(*self.constructor_args, **self.constructor_kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the instance: each process constructs its own."""
        return {name: value for name, value in vars(self).items() if name != "_constructed"}


def _positional(name: str, given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    values = None if isinstance(given, str) else items_of(given)
    if values is None:
        raise ConfigError(
            f"{name}={shown(given)} is not a list of arguments. Give one, such as [1, 2]."
        )
    return tuple(values)


def _by_name(name: str, given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    values = mapping(name, given, example="{'scale': 2}")
    if not all(isinstance(key, str) for key in values):
        raise ConfigError(
            f"{name}={shown(given)} has a key that is not the name of an argument. Give names, "
            f"such as {{'scale': 2}}."
        )
    return values
