"""`ScriptedRank`: a rank without a process, which goes on only when a test lets it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from hpctrain.control.wire import Frame
from hpctrain.rundir.staging import StagedPart
from hpctrain.worker.report_count import LeaveTraining, ReportCount

_EMPTY_PART = StagedPart(files=()).to_bytes()


class ScriptedRank:
    """A rank whose training function, and the thread of whose link, take a step when asked to.

    Parameters
    ----------
    number
        Its world rank.
    steps
        Reports that it makes.
    asks_every
        After how many of them it asks ``should_stop()``; 0: never.
    obeys
        Whether it returns then.
    saves
        Whether it makes one more report before.
    first
        Number of the report that it resumes from; `steps` counts from the beginning.
    checkpoint_every
        With which reports it sends a part of a checkpoint, by their number; 0: with none.
    """

    def __init__(
        self,
        number: int,
        *,
        steps: int,
        asks_every: int,
        obeys: bool,
        saves: bool,
        first: int = 0,
        checkpoint_every: int = 0,
    ) -> None:
        self._number = number
        self._count = ReportCount(rank=number, first=first, timeout_s=0)
        self._checkpoint_every = checkpoint_every
        self._commands: deque[tuple[str, dict[str, Any]]] = deque()
        self._frames: deque[Frame] = deque()
        self.did: list[tuple[str, int]] = []
        """Its outcome, and after which report."""
        self.is_frozen = False
        self._training = self._train(first, steps, asks_every, obeys, saves)

    def send(self, op: str, **details: Any) -> None:
        """Send it a command, which it takes in when it is let."""
        self._commands.append((op, details))

    def _say(self, op: str, body: bytes = b"", **details: Any) -> None:
        self._frames.append(Frame({"op": op, "rank": self._number, **details}, body, b""))

    def _report(self) -> Iterator[None]:
        while self.is_frozen:
            yield
        number = self._count.begin()
        every = self._checkpoint_every
        has_part = bool(every) and number % every == 0
        self._say("report", b'{"metrics":{}}', part_follows=has_part)
        yield
        if has_part:
            self._say("part", _EMPTY_PART, report=number)
            yield

    def _train(
        self, first: int, steps: int, asks_every: int, obeys: bool, saves: bool
    ) -> Iterator[None]:
        try:
            for step in range(first + 1, steps + 1):
                yield from self._report()
                if not asks_every or step % asks_every:
                    continue
                is_told = self._count.should_stop_after(self._count.begun)
                self.did.append(("was told" if is_told else "goes on", step))
                yield
                if is_told and obeys:
                    if saves:
                        yield from self._report()
                    self.did.append(("left", self._count.begun))
                    return
            self.did.append(("came to its end", self._count.begun))
        except LeaveTraining:
            self.did.append(("was unwound", self._count.begun))

    def train(self) -> bool:
        """Go on by a little; return whether the training function has returned."""
        try:
            next(self._training)
        except StopIteration:
            self._say("returned", reports=self._count.begun, collectives=0)
            self._say("done", notified=self._count.was_notified)
            return True
        return False

    def receive(self) -> None:
        """Take in the next command."""
        if not self._commands:
            return
        op, details = self._commands.popleft()
        if op == "freeze":
            self.is_frozen = True
            self._say("frozen", report=self._count.freeze())
        else:
            self._count.stop_after(details["report"], unwind=details["unwind"])
            self.is_frozen = False

    def take_frame(self) -> Frame | None:
        """Return the next frame that it has sent, if there is one."""
        return self._frames.popleft() if self._frames else None
