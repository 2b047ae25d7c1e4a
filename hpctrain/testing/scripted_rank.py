"""`ScriptedRanks`: ranks without processes, which go on only when a test lets them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from hpctrain.control.wire import Frame
from hpctrain.rundir.staging import StagedPart
from hpctrain.testing.fake_ranks import FakeRanks, describe_failure
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
    then
        How its training function ends after these steps.
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
        then: Literal["returns", "raises", "dies", "hangs"] = "returns",
    ) -> None:
        self._number = number
        self._then = then
        self._count = ReportCount(rank=number, first=first, timeout_s=0)
        self._checkpoint_every = checkpoint_every
        self._commands: deque[tuple[str, dict[str, Any]]] = deque()
        self._frames: deque[Frame] = deque()
        self.did: list[tuple[str, int]] = []
        """Its outcome, and after which report."""
        self.is_frozen = False
        for phase in ("importing", "backend", "training"):
            self._say("phase", phase=phase)
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
        self._say("report", b'{"report":%d,"metrics":{}}' % number, part_follows=has_part)
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
            while self._then == "hangs":
                yield
            self.did.append(("came to its end", self._count.begun))
        except LeaveTraining:
            self.did.append(("was unwound", self._count.begun))

    def train(self) -> bool:
        """Go on by a little; return whether the training function has ended."""
        try:
            next(self._training)
        except StopIteration:
            self._end()
            return True
        return False

    def _end(self) -> None:
        if self._then == "returns":
            self._say("returned", reports=self._count.begun, collectives=0)
            self._say("phase", phase="shutdown")
            self._say("done", notified=self._count.was_notified)
            return
        if self._then == "raises":
            why = describe_failure(
                self._number, "it raises", kind="ValueError", report=self._count.begun
            )
            self._say("failed", why)
        self._say("lost")

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


class ScriptedRanks(FakeRanks):
    """Ranks that train by a script: each of them takes a step whenever they are polled.

    Parameters
    ----------
    scripts
        Arguments of each `ScriptedRank`, but for its number and its first report.
    """

    def __init__(self, scripts: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(len(scripts))
        self._scripts = scripts
        self.ranks: list[ScriptedRank] = []
        """Empty until they train."""
        self.first_report = 0
        """Number of the report that they have resumed from."""
        self.over: set[int] = set()
        """Those whose training function has ended."""

    def broadcast(self, op: str, body: bytes = b"", **details: Any) -> None:
        """Send it to every rank, which takes it in when it is let."""
        super().broadcast(op, body, **details)
        if op == "train":
            self.first_report = first = details["first_report"]
            self.ranks = [
                ScriptedRank(rank, first=first, **script)
                for rank, script in enumerate(self._scripts)
            ]
        elif op in ("freeze", "stop"):
            for rank in self.ranks:
                rank.send(op, **details)

    def poll(self, timeout_s: float) -> list[Frame]:
        """Let every rank take a step; return what they have sent."""
        frames = super().poll(timeout_s)
        for number, rank in enumerate(self.ranks):
            rank.receive()
            if number not in self.over and rank.train():
                self.over.add(number)
            while frame := rank.take_frame():
                frames.append(frame)
        return frames
