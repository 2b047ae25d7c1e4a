"""Who gets which rank when workers of an elastic run come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from hpctrain.horovod.rounds import Rounds

TIMEOUT_S = 30


class Asking:
    """Three workers that ask in threads."""

    def __init__(self, pool: ThreadPoolExecutor, *, timeout_s: float = TIMEOUT_S) -> None:
        self._pool = pool
        self.rounds = Rounds(3, timeout_s=timeout_s)

    def ask(self, *slots: int) -> list[Future[tuple[int, ...] | None]]:
        return [self._pool.submit(self.rounds.ask, slot) for slot in slots]

    def all_ask(self) -> tuple[int, ...] | None:
        answers = {answer.result(TIMEOUT_S) for answer in self.ask(0, 1, 2)}
        assert len(answers) == 1
        return answers.pop()


@pytest.fixture
def asking() -> Iterator[Asking]:
    with ThreadPoolExecutor(8) as pool:
        yield Asking(pool)


def test_every_worker_keeps_its_rank_while_the_first_one_lives(asking: Asking) -> None:
    assert asking.all_ask() == (0, 1, 2)
    asking.rounds.replace(2)
    assert asking.all_ask() == (0, 1, 2)


def test_a_new_worker_is_never_rank_0_which_the_others_get_their_state_from(asking: Asking) -> None:
    assert asking.all_ask() == (0, 1, 2)
    asking.rounds.replace(0)
    assert asking.all_ask() == (1, 0, 2)
    asking.rounds.replace(2)
    assert asking.all_ask() == (1, 0, 2)
    # Slot 0 and 2 are newer than slot 1; now slot 0 has been there for longer.
    asking.rounds.replace(1)
    assert asking.all_ask() == (0, 1, 2)


def test_the_request_of_a_worker_that_died_while_it_waited_does_not_count(asking: Asking) -> None:
    (dead,) = asking.ask(1)
    while not asking.rounds._asking:
        pass
    asking.rounds.replace(1)
    assert dead.result(TIMEOUT_S) is None
    others = asking.ask(0, 2)
    assert not any(answer.done() for answer in others)
    (new,) = asking.ask(1)
    assert new.result(TIMEOUT_S) == (0, 1, 2)


def test_there_is_no_round_once_a_worker_has_finished(asking: Asking) -> None:
    asking.all_ask()
    asking.rounds.replace(2)
    waiting = asking.ask(1, 2)
    asking.rounds.finish(0)
    assert [answer.result(TIMEOUT_S) for answer in waiting] == [None, None]


def test_workers_that_do_not_come_are_not_waited_for_for_ever() -> None:
    with ThreadPoolExecutor(8) as pool:
        asking = Asking(pool, timeout_s=0.05)
        assert [answer.result(TIMEOUT_S) for answer in asking.ask(0, 1)] == [None, None]


def test_what_was_stored_for_a_round_is_cleared_before_its_workers_hear_of_it(
    asking: Asking,
) -> None:
    seen: list[Sequence[int]] = []
    asking.rounds.on_round = seen.append
    asking.all_ask()
    assert seen == [(0, 1, 2)]
