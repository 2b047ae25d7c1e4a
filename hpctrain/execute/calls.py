"""Calls of functions on the ranks of a worker group: sent, and answered later."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from hpctrain.control import wire
from hpctrain.control.hub import Hub
from hpctrain.control.wire import Frame
from hpctrain.errors import WorkerError
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.plan import spec

T = TypeVar("T")
_POLL_S = 0.1


class Answer(Future[T]):
    """What a function returned on a rank, once it has.

    Parameters
    ----------
    receive
        Waits for frames of ranks, for some seconds at most, and takes what answers a call.
    """

    def __init__(self, receive: Callable[[float], None]) -> None:
        super().__init__()
        self._receive = receive

    def result(self, timeout: float | None = None) -> T:
        """Return what the function returned, or raise what it raised. Not collective."""
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the function raised, or None. Not collective."""
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout: float | None) -> None:
        timeout_s = math.inf if timeout is None else timeout
        deadline = Deadline(timeout_s, longest_gap_s=ANY_GAP_S)
        while not (self.done() or deadline.is_over):
            self._receive(min(_POLL_S, deadline.left_s))


class Calls:
    """The calls that are under way.

    Parameters
    ----------
    receive
        See `Answer`.
    explain_death
        Returns the error of a rank that died during the call of a function.
    """

    def __init__(
        self,
        receive: Callable[[float], None],
        explain_death: Callable[[int, str], WorkerError],
    ) -> None:
        self._receive = receive
        self._explain_death = explain_death
        self._last = 0
        self._waiting: dict[tuple[int, int], tuple[str, Answer[Any]]] = {}

    def send(
        self,
        hub: Hub,
        ranks: Iterable[int],
        function: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> list[Answer[T]]:
        """Call a function on ranks; return what each will answer, in their order."""
        self._last += 1
        name = repr(function)
        body = spec.pack(
            (function, args, kwargs), what=f"the call of {name}", max_bytes=wire.MAX_CONTENT_BYTES
        )
        answers: dict[int, Answer[T]] = {rank: Answer(self._receive) for rank in ranks}
        for rank, answer in answers.items():
            self._waiting[self._last, rank] = name, answer
        hub.send("call", body, ranks=set(answers), call=self._last)
        return list(answers.values())

    def take(self, frame: Frame) -> bool:
        """Take a frame if it is about a call; return whether it was."""
        rank = int(frame.header.get("rank", -1))
        if frame.op == "answer":
            _, answer = self._waiting.pop((frame.header["call"], rank), ("", None))
            if answer is not None:
                try:
                    succeeded, value = spec.unpack(frame.body)
                # Whatever a class of the user raises: it is this rank's answer, and no other's.
                except Exception as error:
                    succeeded, value = False, error
                (answer.set_result if succeeded else answer.set_exception)(value)
            return True
        if frame.op not in ("lost", "failed") or not self._waiting:
            return False
        self._fail(lambda name: self._explain_death(rank, name))
        return True

    def abandon(self) -> None:
        """Fail what has not been answered: the ranks are gone."""
        self._fail(lambda name: WorkerError(f"the group was shut down during the call of {name}."))

    def _fail(self, error: Callable[[str], WorkerError]) -> None:
        waiting, self._waiting = self._waiting, {}
        for name, answer in waiting.values():
            answer.set_exception(error(name))


class CallsFunctions(abc.ABC):
    """The calls of a worker group."""

    _calls: Calls

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of ranks."""

    @abc.abstractmethod
    def _started_hub(self) -> Hub:
        """Return what the ranks are connected to."""

    def execute(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> list[T]:
        """Call `function` on every rank at the same time; return what each returned, by rank.

        Raises
        ------
        WorkerError
            If a rank dies. An exception of the function is raised as it is, from the lowest rank.
        """
        answers = self._send_call(range(len(self)), function, args, kwargs)
        for answer in answers:
            answer.exception()
        return [answer.result() for answer in answers]

    def execute_async(
        self, function: Callable[..., T], *args: Any, **kwargs: Any
    ) -> list[Answer[T]]:
        """Do what `execute` does, without waiting; each rank's ``result()`` waits for it."""
        return self._send_call(range(len(self)), function, args, kwargs)

    def execute_single(self, rank: int, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `function` on one rank and return what it returned."""
        return self.execute_single_async(rank, function, *args, **kwargs).result()

    def execute_single_async(
        self, rank: int, function: Callable[..., T], *args: Any, **kwargs: Any
    ) -> Answer[T]:
        """Do what `execute_single` does, without waiting; ``result()`` waits."""
        return self._send_call([self._check_rank(rank)], function, args, kwargs)[0]

    def _send_call(
        self, ranks: Any, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Answer[T]]:
        return self._calls.send(self._started_hub(), ranks, function, args, kwargs)

    def _check_rank(self, rank: int) -> int:
        if not 0 <= rank < len(self):
            raise ValueError(f"rank={rank}, but this group has the ranks 0 to {len(self) - 1}.")
        return rank
