"""Seeds the random generators of a rank, so that a run whose function seeds none can be repeated.

Without it each process seeds them by itself, from what the system gives it.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def seed_generators(*words: int) -> None:
    """Seed the generators that Python, NumPy and torch have by default.

    Not collective. A module that is imported later is seeded by its import, so seeds that the user
    sets, also where a module of theirs is imported, come after this one and count.

    Parameters
    ----------
    *words
        What the seed depends on: the run, the attempt, the rank.
    """
    seed = mix(*words)
    random.seed(seed)
    waiting = {}
    for name, seed_module in _SEEDED.items():
        module = sys.modules.get(name)
        if module is None:
            waiting[name] = seed_module
        else:
            seed_module(module, seed)
    if waiting:
        sys.meta_path.insert(0, _SeedsAtImport(waiting, seed))


def mix(*words: int) -> int:
    """Return a seed of 63 bits that depends on all words. Pure."""
    # torch takes signed and unsigned 64 bits; 63 fit both.
    return int.from_bytes(digest(repr(words).encode(), size=8), "little") >> 1


def digest(content: bytes, *, size: int) -> bytes:
    """Return a digest of so many bytes, from which seeds are made. Pure.

    It is BLAKE2b, so that seeds, and with them the order of samples, are those of the runs before.
    A Python in FIPS mode may refuse that, Red Hat's for any use: there it is SHA-256.
    """
    try:
        blake = hashlib.blake2b(content, digest_size=size, usedforsecurity=False)  # noqa: TID251
    except (AttributeError, TypeError, ValueError):
        return hashlib.sha256(content).digest()[:size]
    return blake.digest()


def _seed_numpy(module: Any, seed: int) -> None:
    module.seed(seed % 2**32)


def _seed_torch(module: Any, seed: int) -> None:
    module.default_generator.manual_seed(seed)
    if module.backends.cuda.is_built():
        # Nothing is opened: torch does it when the first GPU is used.
        module.cuda.manual_seed_all(seed)


_SEEDED: dict[str, Callable[[Any, int], None]] = {
    "numpy.random": _seed_numpy,
    "torch": _seed_torch,
}


class _SeedsAtImport:
    """Finds modules as the others of ``sys.meta_path`` do, and seeds them once they are loaded."""

    def __init__(self, waiting: dict[str, Callable[[Any, int], None]], seed: int) -> None:
        self._waiting, self._seed = waiting, seed

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module that is to be seeded; None leaves it to the others."""
        seed_module = self._waiting.get(name)
        if seed_module is None:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                found = finder.find_spec(name, path, target)
                if found is not None:
                    self._seed_after(found, name, seed_module)
                    return found
        return None

    def _seed_after(
        self, found: ModuleSpec, name: str, seed_module: Callable[[Any, int], None]
    ) -> None:
        loader: Any = found.loader
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def load_and_seed(module: ModuleType) -> None:
            load(module)
            self._waiting.pop(name, None)
            # Whatever a file of the user's with this name is, its import is not to fail.
            with suppress(Exception):
                seed_module(module, self._seed)

        # Of this loader alone. One that allows no attribute loads as always.
        with suppress(AttributeError):
            loader.exec_module = load_and_seed
