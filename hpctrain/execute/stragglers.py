"""Which ranks hold the steps of all ranks up for long. Pure: no I/O, no clock.

All ranks end a step together, so its length shows nothing; what shows is how long each rank takes
until it joins the collectives of the step. Only times of one clock are subtracted from each other:
clocks of nodes may be off by hours, and drift.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpctrain.worker.step_times import StepTimes

SLOW_SHARE = 0.2
"""A rank is slow that costs this share of the time of a step: the step takes 1.25 times as long."""
OVER_SHARE = 0.1
"""It is not any more when it costs less than this."""

# Blocks of steps, and by how many standard errors the mean share of a rank is to be above 0. For
# noise that is normal and the same on all ranks, each is less likely than 1e-8 (Student's t).
_WINDOWS: tuple[tuple[int, float], ...] = ((18, 10.0), (32, 8.0), (64, 7.0), (128, 7.0))
_MOST_BLOCKS = _WINDOWS[-1][0]
# More steps than it takes to name a rank, so that it is not named and cleared by turns.
_OVER_BLOCKS = 2 * _WINDOWS[0][0]
# With so few a rank is not named, but looked at again soon.
_FEWEST_BLOCKS, _SUSPICIOUS_T = 4, 5.0
# A process of the system that takes a CPU for a moment slows many short steps, but not for long.
_LEAST_US = 800_000
# Short steps are looked at in blocks, in which what comes and goes within them evens out.
_BLOCK_US = 8_000
# By how much ranks may differ in how long a block took: they end each step together, unless they
# do not count the same steps.
_TOLERANCE = 0.25


@dataclass(frozen=True, kw_only=True)
class Block:
    """One long step, or some short ones that follow each other."""

    first_step: int
    last_step: int
    total_us: int
    """How long they took in all."""
    shares: tuple[tuple[float, ...], tuple[float, ...]]
    """Of that time, how much later each rank joined the first collectives of steps than the median
    of the other ranks, negative if earlier; then the same for their last collectives."""


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A rank that has held up the steps for long."""

    rank: int
    factor: float
    """How much longer a step takes than if this rank were as fast as the median of the others."""
    since: int
    """Step with which it began."""
    until: int
    """The last step that has been looked at."""


@dataclass(frozen=True, kw_only=True)
class StepHistory:
    """The last steps of an attempt, and who is slow in them. A value."""

    world_size: int
    blocks: tuple[Block, ...] = ()
    slow: Mapping[int, SlowRank] = field(default_factory=dict)
    """By rank."""

    @property
    def last_step(self) -> int:
        """The last step that has been looked at; 0 before the first."""
        return self.blocks[-1].last_step if self.blocks else 0

    def after(self, times: Mapping[int, Sequence[StepTimes]]) -> StepHistory:
        """Return the history after a reading. Not collective.

        Parameters
        ----------
        times
            Of the last steps, by rank. If a rank is missing, or ranks do not mean the same by a
            step, the reading says nothing: who is last is not known.
        """
        new = _blocks(times, world_size=self.world_size, after=self.last_step)
        if not new:
            return self
        history = replace(self, blocks=(*self.blocks, *new)[-_MOST_BLOCKS:])
        slow = {}
        for rank in range(self.world_size):
            if (found := history._judge(rank, self.slow.get(rank))) is not None:
                slow[rank] = found
        if self.slow.keys() - slow.keys():
            # What was is not to name the rank again.
            kept = history._recent(_OVER_BLOCKS, least_us=2 * _LEAST_US) or history.blocks
            history = replace(history, blocks=tuple(kept))
        return replace(history, slow=slow)

    def skews(self) -> tuple[float, ...]:
        """Return what each rank has cost of late, as a share of the time of a step.

        Not collective. Negative for a rank that joins before the median of the others; empty before
        there is a reading.
        """
        if not self.blocks:
            return ()
        recent = self._recent(_WINDOWS[0][0]) or self.blocks
        return tuple(
            max(_mean([b.shares[which][rank] for b in recent]) for which in (0, 1))
            for rank in range(self.world_size)
        )

    def _judge(self, rank: int, known: SlowRank | None) -> SlowRank | None:
        if known is None:
            for which in (0, 1):
                if (share := self._slow_share(rank, which)) is not None:
                    return self._describe(rank, share, which)
            return None
        longer = self._recent(_OVER_BLOCKS, least_us=2 * _LEAST_US)
        if longer is not None and self._most(rank, longer) < OVER_SHARE:
            return None
        share = self._most(rank, self._recent(_WINDOWS[0][0]) or self.blocks)
        return replace(known, factor=factor_of(max(0.0, share)), until=self.last_step)

    def _slow_share(self, rank: int, which: int) -> float | None:
        """Return what a rank costs in the fewest blocks that show that it is slow."""
        shares = [block.shares[which][rank] for block in self.blocks[-_WINDOWS[0][0] :]]
        if _mean(shares) < OVER_SHARE:
            # So are all but a few of a thousand ranks; or it was slow, and is not any more.
            return None
        for num_blocks, least_t in _WINDOWS:
            recent = self.blocks[-num_blocks:]
            if len(recent) == num_blocks and _is_long(recent):
                shares = [block.shares[which][rank] for block in recent]
                if _mean(shares) >= SLOW_SHARE and _t(shares) >= least_t:
                    return _mean(shares)
        return None

    def _describe(self, rank: int, share: float, which: int) -> SlowRank:
        since = self.blocks[-self._count_slow(rank, share, which)].first_step
        return SlowRank(rank=rank, factor=factor_of(share), since=since, until=self.last_step)

    def _count_slow(self, rank: int, share: float, which: int) -> int:
        """Return in how many of the last blocks a rank is slow: since when it costs the most."""
        found, best, gained = 1, -math.inf, 0.0
        for count, block in enumerate(reversed(self.blocks), start=1):
            # Half of the share is allowed, so that blocks before count against it.
            gained += block.shares[which][rank] - share / 2
            if gained > best:
                found, best = count, gained
        return found

    def missing_us(self) -> float | None:
        """Return how long it takes until a rank can be named that looks slow; None without one.

        Not collective.
        """
        recent = self.blocks[-_FEWEST_BLOCKS:]
        if len(recent) < _FEWEST_BLOCKS:
            return None
        missing = []
        for rank in set(range(self.world_size)) - self.slow.keys():
            for which in (0, 1):
                shares = [block.shares[which][rank] for block in recent]
                if _mean(shares) >= SLOW_SHARE and _t(shares) >= _SUSPICIOUS_T:
                    count = self._count_slow(rank, _mean(shares), which)
                    missing.append(max(_WINDOWS[0][0] - count, 1))
        length_us = sum(block.total_us for block in recent) / len(recent)
        return max(min(missing) * length_us, _LEAST_US / 4) if missing else None

    def _recent(self, num_blocks: int, *, least_us: int = _LEAST_US) -> Sequence[Block] | None:
        """Return the last so many blocks, and more of them if they are short; None: too few."""
        for count in range(num_blocks, len(self.blocks) + 1):
            recent = self.blocks[-count:]
            if _is_long(recent, least_us):
                return recent
        return None

    @staticmethod
    def _most(rank: int, blocks: Sequence[Block]) -> float:
        return max(_mean([block.shares[which][rank] for block in blocks]) for which in (0, 1))


def factor_of(share: float) -> float:
    """Return how many times as long steps take as they would without what costs this share.

    Not collective.

    Examples
    --------
    >>> factor_of(0.5)
    2.0
    """
    return 1 / (1 - min(share, 0.999))


def shares_of(own_us: Sequence[int], total_us: int) -> tuple[float, ...]:
    """Return how much later each rank came than the median of the others, of the time of a step.

    Not collective.

    Parameters
    ----------
    own_us
        How long each rank took by itself.
    total_us
        How long the step took.

    Examples
    --------
    >>> shares_of([10, 10, 15], 20)
    (-0.125, -0.125, 0.25)
    """
    ordered = sorted(own_us)
    found = []
    for own in own_us:
        place = bisect_left(ordered, own)
        found.append((own - _median_without(ordered, place)) / max(total_us, 1))
    return tuple(found)


def _median_without(ordered: Sequence[int], place: int) -> float:
    """Return the median of sorted values without one of them."""
    num = len(ordered) - 1
    # Where the middle of the others lies, now that those behind `place` have moved up by one.
    low, high = (num - 1) // 2, num // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


def _blocks(
    times: Mapping[int, Sequence[StepTimes]], *, world_size: int, after: int
) -> list[Block]:
    """Return the steps that all ranks have made since the last reading, in blocks."""
    if world_size < 2 or any(not times.get(rank) for rank in range(world_size)):
        return []
    by_step = [{each.step: each for each in times[rank]} for rank in range(world_size)]
    common = set.intersection(*(set(steps) for steps in by_step))
    steps = [[own[step] for own in by_step] for step in sorted(common) if step > after]
    blocks: list[list[list[StepTimes]]] = []
    for step in steps:
        if blocks and _length_us(blocks[-1]) < _BLOCK_US:
            blocks[-1].append(step)
        else:
            blocks.append([step])
    if len(blocks) > 1 and _length_us(blocks[-1]) < _BLOCK_US:
        rest = blocks.pop()
        blocks[-1] += rest
    return [_block(steps) for steps in blocks if _spread(steps) <= _TOLERANCE]


def _block(steps: Sequence[Sequence[StepTimes]]) -> Block:
    total_us = _length_us(steps)
    ranks = range(len(steps[0]))
    first = [sum(step[rank].first for step in steps) for rank in ranks]
    last = [sum(step[rank].last for step in steps) for rank in ranks]
    return Block(
        first_step=steps[0][0].step,
        last_step=steps[-1][0].step,
        total_us=total_us,
        shares=(shares_of(first, total_us), shares_of(last, total_us)),
    )


def _length_us(steps: Sequence[Sequence[StepTimes]]) -> int:
    return sum(max(times.total for times in step) for step in steps)


def _spread(steps: Sequence[Sequence[StepTimes]]) -> float:
    totals = [sum(step[rank].total for step in steps) for rank in range(len(steps[0]))]
    longest = max(*totals, 1)
    return (longest - min(totals)) / longest


def _is_long(blocks: Sequence[Block], least_us: int = _LEAST_US) -> bool:
    return sum(block.total_us for block in blocks) >= least_us


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _t(values: Sequence[float]) -> float:
    """Return by how many of its standard errors the mean is above 0."""
    mean = _mean(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    # No clock is exact to less than a thousandth of a step.
    error: float = math.sqrt(max(variance, 1e-6) / len(values))
    return mean / error
