"""`PackTree`: which node gets a packed environment from which other one. Pure.

The first node that comes reads the shared file, and the next one too if that takes long. Each node
that has the file gives it to up to `fanout` others at a time, so those that have it are ever more.
Who cannot get it from two nodes reads the shared file too, and a node from which two others cannot
get it gives it to no more.

A node gives the file once it has all of it, and goes on to give it to others. A network card of
bandwidth ``B`` that serves ``f`` nodes at a time gives a file of ``S`` bytes to them in
``f * S / B``, and then ``1 + f`` times as many have it: ``n`` nodes have it after
``ceil(log(n) / log(1 + f)) * f * S / B``. With ``f = 1`` that is the broadcast along a binomial
tree, ``ceil(log2(n)) * S / B`` (Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH", 2005). Where it is not cards that limit, but what one node
receives, digests and writes, ``R`` bytes a second, it is ``ceil(log(n) / log(1 + f)) * S / R``.
With 500 nodes it takes so long, less than by the formula if few nodes are left for the last round::

    f                                1    2    3    4   32
    cards are the limit: S / B       9   12   13   15   47
    nodes are the limit: S / R       9    6    5    4    2
"""

from __future__ import annotations

from collections import Counter, defaultdict

FANOUT = 3
"""To how many others a node gives the file at a time: at most 1.5 times slower than the best where
cards are the limit, and nearly as fast as 4 where nodes are."""

_TRIES = 2
_MOST_FAILURES = 2


class PackTree:
    """The nodes that have the file, get it, and wait for it, by their numbers.

    Parameters
    ----------
    fanout
        To how many others a node gives the file at a time.
    """

    def __init__(self, fanout: int) -> None:
        self._fanout = fanout
        # In order; those of the first have failed before.
        self._again: dict[int, None] = {}
        self._waiting: dict[int, None] = {}
        self._sources: dict[int, int | None] = {}
        self._active: Counter[int] = Counter()
        self._failures: dict[int, int] = {}
        self._tried: defaultdict[int, set[int]] = defaultdict(set)
        self.num_given = 0
        """How many nodes have got the file from another one."""

    def add(self, node: int) -> None:
        """Let a node wait for its turn."""
        self._waiting[node] = None

    def is_busy(self, node: int) -> bool:
        """Return whether a node gets or reads the file now."""
        return node in self._sources

    def source_of(self, node: int) -> int | None:
        """Return from which node one gets the file now; None from none."""
        return self._sources.get(node)

    def complete(self, node: int) -> None:
        """Note that a node has the file."""
        self.num_given += self.source_of(node) is not None
        self._let_go(node)
        self._failures[node] = 0

    def fail(self, node: int) -> None:
        """Note that a node could not get it from where it was to."""
        source = self._let_go(node)
        if source is not None:
            self._tried[node].add(source)
            if source in self._failures:
                self._failures[source] += 1
        self._again[node] = None

    def remove(self, node: int) -> None:
        """Forget a node that is gone."""
        self._let_go(node)
        for place in (self._again, self._waiting, self._failures, self._tried):
            place.pop(node, None)

    def assign(self, *, is_late: bool = False) -> list[tuple[int, int | None]]:
        """Return who is to get the file from whom now; None is for the shared file.

        Parameters
        ----------
        is_late
            Whether who reads the shared file has done so for long: then one more node reads it, if
            it would wait for that one.
        """
        found = []
        may_read = is_late and None in self._sources.values()
        for node in [*self._again, *self._waiting]:
            tried = self._tried.get(node, set())
            usable = [
                other
                for other, failures in self._failures.items()
                if failures < _MOST_FAILURES and other not in tried
            ]
            free = [other for other in usable if self._active[other] < self._fanout]
            source = None
            if len(tried) < _TRIES:
                if free:
                    source = min(free, key=lambda o: (self._failures[o], self._active[o]))
                elif may_read and not usable:
                    may_read = False
                elif usable or self._sources:
                    if tried:
                        continue
                    # The others have no more choice than this one.
                    break
            self._begin(node, source)
            found.append((node, source))
        return found

    def _begin(self, node: int, source: int | None) -> None:
        self._again.pop(node, None)
        self._waiting.pop(node, None)
        self._sources[node] = source
        if source is not None:
            self._active[source] += 1

    def _let_go(self, node: int) -> int | None:
        source = self._sources.pop(node, None)
        if source is not None:
            self._active[source] -= 1
        return source
