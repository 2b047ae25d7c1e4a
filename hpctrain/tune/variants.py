"""The variants of a search space: each combination of its grids, with a draw of all else."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache, cached_property
from typing import Any

from hpctrain.checks import shown
from hpctrain.errors import ConfigError
from hpctrain.tune.domains import Domain, Function, Grid, grid_search
from hpctrain.unresolved import (
    Path,
    children,
    find_unresolved,
    find_unseen,
    is_grid_mapping,
    is_unresolved,
)

_MOST_PASSES = 20

Grids = Sequence[tuple[Path, Sequence[Any]]]


@dataclass(frozen=True, kw_only=True)
class Variants:
    """The variants of a search space by number, the same ones each time they are asked for.

    As in Ray Tune the grids are gone through as a whole, `num_samples` times, and everything else
    is drawn anew for each variant.
    """

    space: Mapping[str, Any]
    seed: int
    num_samples: int = 1

    @cached_property
    def count(self) -> int:
        """How many there are; there may be more than `len` can return."""
        return self.num_samples * self._combinations

    @cached_property
    def _grids(self) -> Grids:
        # A grid may have a million values: they are looked for once.
        return _find_grids(self.space)

    @cached_property
    def _combinations(self) -> int:
        return _count(self._grids)

    def __len__(self) -> int:
        """Return how many there are."""
        return self.count

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return one of them, from 0.

        Raises
        ------
        ConfigError
            If a function of the space fails, or a grid is inside a drawn value.
        """
        if not 0 <= number < self.count:
            raise IndexError(number)
        return resolve(
            self.space,
            combination=number % self._combinations,
            grids=self._grids,
            rng_of=lambda path: random.Random(f"{self.seed}/{number}/{show_path(path)}"),
        )


def resolve(
    space: Mapping[str, Any],
    *,
    combination: int,
    rng_of: Callable[[Path], random.Random],
    grids: Grids | None = None,
) -> dict[str, Any]:
    """Return a space with a value in place of each domain. Pure, as far as its functions are.

    Parameters
    ----------
    combination
        Number of the combination of grids, from 0; the grid whose path is first in the alphabet
        changes fastest.
    rng_of
        Returns what to draw with, for each path: a parameter that is added changes no other.
    grids
        Those of the space, if they are known.

    Raises
    ------
    ConfigError
        If a function fails, or a grid is inside a drawn value.
    """
    values: dict[Path, Any] = {}
    for path, grid in _find_grids(space) if grids is None else grids:
        combination, index = divmod(combination, len(grid))
        values[path] = grid[index]
    # A domain inside a drawn value has the path of the one it was drawn from: it takes further
    # draws of the same generator, which the choice itself does not decide.
    rng_of = cache(rng_of)
    resolved = put_values(dict(space), values)
    found: dict[Path, Any] = {}
    for _ in range(_MOST_PASSES):
        found = dict(find_unresolved(resolved))
        if not found:
            assert isinstance(resolved, dict)
            return resolved
        for path, domain in found.items():
            if isinstance(domain, Grid) or is_grid_mapping(domain):
                raise ConfigError(
                    f"grid_search of {show_path(path)} is inside a value that is chosen. Put the "
                    f"grid into param_space itself, or use choice()."
                )
        functions = {p: d for p, d in found.items() if isinstance(d, Function)}
        drawn = {p: d.sample(rng_of(p)) for p, d in found.items() if p not in functions}
        # A function is given what is known, and those that wait for others come later.
        resolved = put_values(resolved, drawn or _call(functions, resolved))
    raise ConfigError(
        f"param_space: {show_path(next(iter(found)))} still holds a domain after {_MOST_PASSES} "
        f"draws. Values that are drawn may hold domains, but not themselves."
    )


def check_space(space: object) -> None:
    """Refuse what is no search space. Pure.

    Raises
    ------
    ConfigError
        If it is not a dict with names as keys, a grid has no values, a domain is where none is
        looked for, or two have the same name.
    """
    if not isinstance(space, Mapping):
        raise ConfigError(
            f"param_space={shown(space)} is a {type(space).__name__}. A dict is needed: "
            f"param_space={{'lr': tune.loguniform(1e-4, 1e-1)}}."
        )
    for key in space:
        if not isinstance(key, str):
            raise ConfigError(f"param_space has the key {shown(key)}. Keys are names: use text.")
    if (found := find_unseen(space)) is not None:
        path, domain = found
        raise ConfigError(
            f"param_space has {shown(domain)} at {show_path(path)}, where it is not drawn from: "
            f"domains are found in dicts, lists, tuples and dataclasses. Put it into one of them."
        )
    _find_grids(space)
    shown_paths: dict[str, Path] = {}
    for path, _ in find_unresolved(space):
        if shown_paths.setdefault(show_path(path), path) != path:
            raise ConfigError(
                f"param_space has two parameters of the name {show_path(path)}: one at "
                f"{shown_paths[show_path(path)]} and one at {path}. Rename one."
            )


def show_path(path: Path) -> str:
    """Return the name of a parameter: ``train_loop_config/lr``. Pure."""
    return "/".join(map(str, path))


def _find_grids(space: Mapping[str, Any]) -> Grids:
    grids: list[tuple[Path, Sequence[Any]]] = []
    for path, domain in find_unresolved(space):
        if isinstance(domain, Grid):
            grids.append((path, domain.values))
        elif is_grid_mapping(domain):
            grids.append((path, grid_search(domain["grid_search"]).values))
    return sorted(grids, key=lambda grid: [_order(key) for key in grid[0]])


def _order(key: Any) -> tuple[int, Any]:
    """Return what indices, names and other keys are sorted by."""
    if isinstance(key, str):
        return 1, key
    return (0, key) if isinstance(key, int) else (2, shown(key))


def _count(grids: Grids) -> int:
    return math.prod(len(values) for _, values in grids)


def _call(functions: Mapping[Path, Domain], resolved: Any) -> dict[Path, Any]:
    """Return what those functions return that need no value of another one."""
    values: dict[Path, Any] = {}
    failed: tuple[Path, Exception] | None = None
    for path, function in functions.items():
        assert isinstance(function, Function)
        try:
            config = (_Known(resolved, path),) if function.takes_config else ()
            value = function.func(*config)
            _refuse_own(value, functions.values())
            values[path] = value
        # Whatever a user's function does with a value that is not there yet.
        except Exception as error:
            failed = failed or (path, error)
    if values or failed is None:
        return values
    path, cause = failed
    raise ConfigError(
        f"sample_from() of {show_path(path)} failed: {type(cause).__name__}: {cause}. It is given "
        f"the config itself, with the other values of param_space: lambda config: config['x']. It "
        f"must not need its own value."
    ) from cause


def _refuse_own(value: Any, functions: Collection[Domain]) -> None:
    """Refuse a value that holds a function which is yet to be called: it would have no end."""
    for path, inside in find_unresolved(value):
        if any(inside is function for function in functions):
            raise RuntimeError(f"it returned {show_path(path)!r} of the config without a value")


class _Known(dict[str, Any]):
    """A config as a function sees it: without its own value; what is not there yet is an error.

    Parameters
    ----------
    config
        The values that there are, and domains.
    own
        Path of the value of the function.
    """

    def __init__(self, config: Mapping[str, Any], own: Path) -> None:
        super().__init__((key, value) for key, value in config.items() if (key,) != own)
        self._own = own

    # dict(config) and {**config} then ask for each value, too.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def __getitem__(self, key: str) -> Any:
        is_own = (key,) == self._own
        value = None if is_own else super().__getitem__(key)
        if is_own or is_unresolved(value):
            raise RuntimeError(f"{key!r} has no value yet")
        own = self._own[1:] if self._own[:1] == (key,) else ()
        return _Known(value, own) if isinstance(value, dict) else value

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def values(self) -> Any:
        return [self[key] for key in self]


def put_values(value: Any, values: Mapping[Path, Any], path: Path = ()) -> Any:
    """Return a copy of containers with other values at some paths; all else stays itself. Pure."""
    if path in values:
        return copy_containers(values[path])
    if is_unresolved(value) or not any(each[: len(path)] == path for each in values):
        return copy_containers(value)
    inside = {key: put_values(item, values, (*path, key)) for key, item in children(value)}
    if isinstance(value, Mapping):
        return inside
    if is_dataclass(value) and not isinstance(value, type):
        changed = {k: v for k, v in inside.items() if (*path, k)[: len(path) + 1] in _heads(values)}
        return replace(value, **changed)
    items = list(inside.values())
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return items


def _heads(values: Mapping[Path, Any]) -> set[Path]:
    return {path[:end] for path in values for end in range(1, len(path) + 1)}


def copy_containers(value: Any, copies: dict[int, Any] | None = None) -> Any:
    """Return a copy of dicts and lists: trials do not share what they may change. Pure.

    Parameters
    ----------
    copies
        By `id`, those of the containers around it: it may hold itself.
    """
    if is_unresolved(value) or type(value) not in (dict, list):
        return value
    copies = {} if copies is None else copies
    if id(value) in copies:
        return copies[id(value)]
    copy: Any = type(value)()
    inside = {**copies, id(value): copy}
    if type(value) is dict:
        copy.update((key, copy_containers(item, inside)) for key, item in value.items())
    else:
        copy.extend(copy_containers(item, inside) for item in value)
    return copy
