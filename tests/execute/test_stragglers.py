"""Which ranks are slow, against a reference of NumPy and a simulation of noisy ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hpctrain.execute.stragglers import StepHistory, factor_of, shares_of
from hpctrain.torch.step_times import step_times
from hpctrain.worker.step_times import StepTimes, decode_step_times, encode_step_times

EachExample = Callable[[Callable[[np.random.Generator], None]], None]
Noise = Callable[[np.random.Generator, tuple[int, int]], Any]
Times = dict[int, list[StepTimes]]

# What multiplies the time of a rank in a step: nothing of it is the rank's own.
NOISES: dict[str, Noise] = {
    "none": lambda rng, shape: np.ones(shape),
    "normal": lambda rng, shape: np.maximum(0.2, rng.normal(1, 0.1, shape)),
    "skewed": lambda rng, shape: rng.lognormal(0, 0.5, shape),
    "heavy tails": lambda rng, shape: 0.7 + 0.3 * rng.pareto(2.2, shape),
    "rare hiccups": lambda rng, shape: 1.0 + 50 * (rng.random(shape) < 0.01),
    "one in two steps": lambda rng, shape: 1.0 + 3 * (rng.random(shape) < 0.5),
    "bursts": lambda rng, shape: _bursts(rng, shape),
    "steps of unlike length": lambda rng, shape: (
        rng.uniform(0.1, 10, (shape[0], 1)) * rng.normal(1, 0.05, shape)
    ),
}
KINDS = ("one call", "buckets", "calls that wait")


def _bursts(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    """Return noise in which a rank is slow in up to ten steps after each other."""
    factors = np.ones(shape)
    for _ in range(shape[0] // 50):
        begin, rank = rng.integers(shape[0]), rng.integers(shape[1])
        factors[begin : begin + rng.integers(1, 11), rank] = 2
    return factors


def simulate(own_us: Any, kind: str = "one call", *, first_step: int = 1) -> Times:
    """Return the times of ranks that need so long for each step, shape (steps, ranks)."""
    latest = own_us.max(axis=1)
    times: Times = {rank: [] for rank in range(own_us.shape[1])}
    for number, (own, most) in enumerate(zip(own_us, latest, strict=True), start=first_step):
        for rank, mine in enumerate(own):
            # DDP calls for each bucket of gradients, and waits at the end alone.
            first = mine * 0.5 if kind == "buckets" else mine
            # Whoever waits in the first of several calls makes the last as late as all others.
            last = most + 100 if kind == "calls that wait" else mine
            times[rank].append(StepTimes(number, int(most + 200), int(first), int(last)))
    return times


def readings(times: Times, rng: np.random.Generator, *, most: int = 40) -> Iterator[Times]:
    """Return what is read of it now and then; steps between two readings may be lost."""
    num_steps, end = len(times[0]), 0
    while end < num_steps:
        end += int(rng.integers(1, most))
        kept = int(rng.integers(1, 2 * most))
        # Ranks are not read at the very same moment.
        yield {
            rank: own[max(0, end - kept - int(rng.integers(3))) : end + int(rng.integers(3))]
            for rank, own in times.items()
        }


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("kind", "num_ranks", "step_us"),
    [
        ("one call", 2, 80_000),
        ("one call", 4, 1_500),
        ("calls that wait", 4, 100_000),
        ("buckets", 12, 100_000),
    ],
)
def test_no_rank_is_named_in_ten_thousand_noisy_steps(
    noise: str, kind: str, num_ranks: int, step_us: int
) -> None:
    rng = np.random.default_rng(len(noise) + num_ranks)
    own = step_us * NOISES[noise](rng, (10_000, num_ranks))
    # Rank 0 saves at some of the steps, and another one always has a little more to do.
    own[::25, 0] += 5 * step_us
    own[:, 1] *= 1.05
    history = StepHistory(world_size=num_ranks)
    for reading in readings(simulate(own, kind), rng):
        history = history.after(reading)
        assert not history.slow
    assert history.last_step >= 9_990


def test_a_rank_that_takes_half_as_long_again_is_named_within_twenty_steps(
    each_example: EachExample,
) -> None:
    def example(rng: np.random.Generator) -> None:
        num_ranks, kind = int(rng.integers(2, 9)), KINDS[rng.integers(3)]
        slow, onset = int(rng.integers(num_ranks)), int(rng.integers(1, 200))
        own = 60_000 * rng.normal(1, rng.uniform(0, 0.06), (onset + 400, num_ranks))
        own[onset:, slow] *= 1.5
        own[onset + 200 :, slow] /= 1.5
        times = simulate(own, kind)
        history, named_at, cleared_at = StepHistory(world_size=num_ranks), 0, 0
        for step in range(1, onset + 401):
            history = history.after({r: own[max(0, step - 30) : step] for r, own in times.items()})
            assert not set(history.slow) - {slow}
            if history.slow and not named_at:
                named_at, found = step, history.slow[slow]
                assert found.factor == pytest.approx(1.5, abs=0.15)
                assert abs(found.since - onset - 1) <= 2
            elif named_at and not history.slow and not cleared_at:
                cleared_at = step
            elif cleared_at:
                assert not history.slow
        assert onset < named_at <= onset + 20
        assert onset + 200 < cleared_at <= onset + 300

    each_example(example)


def test_shares_are_those_of_numpy(each_example: EachExample) -> None:
    def example(rng: np.random.Generator) -> None:
        own = rng.integers(0, 10 ** int(rng.integers(1, 10)), int(rng.integers(2, 12)))
        if rng.random() < 0.3:
            own[:] = own[0]
        total = int(rng.integers(0, 10**9))
        expected = [(o - np.median(np.delete(own, i))) / max(total, 1) for i, o in enumerate(own)]
        assert shares_of(own.tolist(), total) == pytest.approx(expected, rel=1e-12)

    each_example(example)


def test_times_do_not_depend_on_clocks(each_example: EachExample) -> None:
    def example(rng: np.random.Generator) -> None:
        num_ranks, num_steps = int(rng.integers(2, 5)), int(rng.integers(2, 30))
        own = rng.uniform(1e3, 1e5, (num_steps, num_ranks))
        calls = int(rng.integers(1, 6))
        found, exact = {}, {}
        for rank in range(num_ranks):
            # Seconds or years away, and up to 100 millionths too fast or too slow.
            offset, drift = rng.uniform(-1e8, 1e8), 1 + rng.uniform(-1e-4, 1e-4)

            def clock(us: float, offset: float = offset, drift: float = drift) -> int:
                return int((us * drift + offset + 2e9) * 1000)

            entries, marks, now, rows = [], [(clock(0.0), 0)], 0.0, []
            for step in range(num_steps):
                mine, most = own[step, rank], own[step].max()
                at = [now + mine * (call + 1) / calls for call in range(calls)]
                entries += [_entry(clock(each)) for each in at]
                rows.append((step + 1, most + 200, at[0] - now, at[-1] - now))
                now += most + 200
                marks.append((clock(now), step + 1))
            # Calls after the last mark belong to a step that has not ended.
            entries.append(_entry(clock(now + 10)))
            found[rank], exact[rank] = step_times(entries, marks, {"0"}), rows[1:]
        for rank, rows in exact.items():
            got = decode_step_times(encode_step_times(found[rank]))
            assert [each.step for each in got] == [row[0] for row in rows]
            for each, row in zip(got, rows, strict=True):
                assert each[1:] == pytest.approx(row[1:], rel=2e-4, abs=2)

    each_example(example)


def test_whatever_ranks_send_nothing_is_raised(each_example: EachExample) -> None:
    def example(rng: np.random.Generator) -> None:
        num_ranks = int(rng.integers(1, 5))
        history = StepHistory(world_size=num_ranks)
        for _ in range(20):
            reading: Times = {}
            for rank in range(int(rng.integers(0, 6))):
                numbers = rng.integers(-5, 40, int(rng.integers(0, 30)))
                most = int(10 ** rng.integers(0, 12))
                reading[rank] = [
                    StepTimes(int(n), *map(int, rng.integers(-most, most, 3))) for n in numbers
                ]
            history = history.after(reading)
            history.missing_us()
            assert len(history.skews()) in (0, num_ranks)

    each_example(example)


def _entry(at_ns: int, *, group: str = "0", is_p2p: bool = False) -> dict[str, Any]:
    return {"process_group": (group, ""), "is_p2p": is_p2p, "time_created_ns": at_ns}


def test_steps_in_which_a_rank_is_missing_say_nothing() -> None:
    own = np.full((40, 3), 60_000.0)
    own[:, 1] *= 3
    times = simulate(own)
    del times[2]
    assert StepHistory(world_size=3).after(times).blocks == ()
    assert StepHistory(world_size=3).after({**times, 2: []}).blocks == ()
    assert StepHistory(world_size=1).after({0: times[0]}).blocks == ()


def test_ranks_that_count_other_steps_say_nothing() -> None:
    rng = np.random.default_rng(0)
    own = np.repeat(rng.uniform(5e3, 5e5, (60, 1)), 3, axis=1)
    own[:, 1] *= 1.5
    times = simulate(own)
    shifted = [each._replace(step=each.step + 1) for each in times[1]]
    history = StepHistory(world_size=3).after({**times, 1: shifted})
    assert not history.slow
    assert StepHistory(world_size=3).after(times).slow.keys() == {1}


@pytest.mark.parametrize("extra", [{"group": "7"}, {"is_p2p": True}])
def test_times_are_not_known_where_some_ranks_wait_for_some_others(extra: Any) -> None:
    marks = [(1_000, 1), (2_000, 2), (3_000, 3)]
    entries = [_entry(at) for at in (500, 1_500, 2_500)]
    assert len(step_times(entries, marks, {"0"})) == 2
    assert step_times([*entries, _entry(2_600, **extra)], marks, {"0"}) == []


def test_two_of_four_ranks_can_be_slow() -> None:
    own = np.full((40, 4), 60_000.0)
    own[:, 2:] *= 2
    slow = StepHistory(world_size=4).after(simulate(own)).slow
    assert {rank: round(each.factor, 1) for rank, each in slow.items()} == {2: 2.0, 3: 2.0}


def test_a_look_follows_soon_where_a_rank_may_be_slow() -> None:
    own = np.full((30, 3), 100_000.0)
    history = StepHistory(world_size=3).after(simulate(own))
    assert history.missing_us() is None
    own[24:, 1] *= 2
    history = StepHistory(world_size=3).after(simulate(own))
    assert not history.slow
    # 18 steps are needed, and 6 of 200 ms are there.
    assert history.missing_us() == pytest.approx(12 * 200_000, rel=0.1)


def test_a_share_of_all_the_time_is_a_finite_factor() -> None:
    assert factor_of(0.2) == pytest.approx(1.25)
    assert factor_of(1.0) == pytest.approx(1000)
