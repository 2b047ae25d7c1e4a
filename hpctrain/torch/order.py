"""One order for all ranks, whatever a sampler draws with.

What can be seeded is seeded for a draw. What cannot, such as a generator in a closure, is found
out: ranks compare what they have drawn through the store of the process group, without waiting for
each other.
"""

from __future__ import annotations

import hashlib
import random
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch.utils.data import Dataset

from hpctrain.errors import ConfigError
from hpctrain.torch import rng

Seeding = Callable[[int], Callable[[], Any]]
"""Seeds a generator, and returns what brings its state back."""

_store: Any = None
_made: Counter[str] = Counter()


def compare_through(store: Any) -> None:
    """Let ranks compare their orders through a store from now on; None ends it. Not collective."""
    global _store
    _store = store
    _made.clear()


class SharedOrder:
    """The orders of one sampler, which are to be the same on every rank.

    Every rank makes one for the same samplers in the same order.

    Parameters
    ----------
    sampler
        Draws for all ranks.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        name = type(sampler).__name__
        self._name = f"{name}/{len(sampler)}/{_made[name]}"
        _made[name] += 1
        self._draws: Counter[int] = Counter()
        """How often each epoch was drawn: the order may depend on more than its number."""

    def draw(self, epoch: int, *, seed: int) -> list[Any]:
        """Return what the sampler draws for an epoch. Not collective.

        Raises
        ------
        ConfigError
            If another rank has drawn something else.
        """
        with rng.seeded(seed), _all_seeded(find_generators(self._sampler), seed):
            order = list(self._sampler)
        if _store is not None:
            mine = _digest(order)
            key = f"{self._name}/{epoch}/{self._draws[epoch]}"
            self._draws[epoch] += 1
            theirs = _store.compare_set(key, "", mine).decode()
            if theirs != mine:
                raise ConfigError(
                    f"prepare_data_loader(): {type(self._sampler).__name__} draws another order "
                    f"on this rank than on another one in epoch {epoch}, so that samples would be "
                    f"left out. Let it draw from the generators of random, numpy.random or torch, "
                    f"or from one that is an attribute of it; or let it draw for its rank by "
                    f"itself and set add_dist_sampler=False."
                )
        return order


def find_generators(sampler: Any) -> list[Any]:
    """Return the generators among the attributes of a sampler, and of samplers inside of it."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = [sampler]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or isinstance(part, Dataset):
            continue
        seen.add(id(part))
        if _seeding(part) is not None:
            found[id(part)] = part
        elif isinstance(part, (list, tuple)):
            # Of indices and weights the first says enough.
            waiting += part if part and not isinstance(part[0], (int, float)) else ()
        elif isinstance(part, Mapping):
            waiting += part.values()
        elif hasattr(part, "__iter__") and hasattr(part, "__dict__"):
            waiting += vars(part).values()
    return list(found.values())


@contextmanager
def _all_seeded(generators: Sequence[Any], seed: int) -> Iterator[None]:
    """Seed generators for a while, each otherwise; what they draw later does not change."""
    with ExitStack() as stack:
        for number, generator in enumerate(generators):
            seeding = _seeding(generator)
            assert seeding is not None, "find_generators() takes no others"
            stack.callback(seeding(rng.mix(seed, number)))
        yield


def _seeding(part: Any) -> Seeding | None:
    if isinstance(part, torch.Generator):
        return _restart(part.get_state, part.set_state, part.manual_seed)
    if isinstance(part, random.Random) and not isinstance(part, random.SystemRandom):
        return _restart(part.getstate, part.setstate, part.seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(part, numpy.random.RandomState):
        return _restart(part.get_state, part.set_state, lambda seed: part.seed(seed % 2**32))
    if numpy is not None and isinstance(part, numpy.random.Generator):
        bits = part.bit_generator
        return _restart(
            lambda: bits.state,
            lambda state: setattr(bits, "state", state),
            lambda seed: setattr(bits, "state", type(bits)(seed).state),
        )
    return None


def _restart(
    read: Callable[[], Any], write: Callable[[Any], Any], begin: Callable[[int], Any]
) -> Seeding:
    def restart(seed: int) -> Callable[[], Any]:
        state = read()
        begin(seed)
        return lambda: write(state)

    return restart


def _digest(order: list[Any]) -> str:
    try:
        content = array("q", order).tobytes()
    except TypeError:
        try:
            sizes = array("q", map(len, order))
            content = (sizes + array("q", chain.from_iterable(order))).tobytes()
        except TypeError:
            text = repr(order)
            # Where objects show their addresses there is nothing to compare.
            content = (str(len(order)) if " at 0x" in text else text).encode()
    return hashlib.sha256(content).hexdigest()
