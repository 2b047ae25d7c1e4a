"""`StartNotes`: what the ledger has on how ranks got to their modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from hpctrain.execute.rank_forks import LEFT_OUT
from hpctrain.log import log

if TYPE_CHECKING:
    from hpctrain.execute.node_answers import Brought
    from hpctrain.pack.header import EnvironmentPack


class StartNotes:
    """Writes it down, and logs what a user may want to change.

    Parameters
    ----------
    note
        Writes an event into the ledger.
    pack
        The packed environment of the run; None without one.
    is_verbose
        Whether it is logged that ranks are not forked.
    """

    def __init__(
        self, note: Callable[..., None], *, pack: EnvironmentPack | None, is_verbose: bool
    ) -> None:
        self._note, self._pack, self._is_verbose = note, pack, is_verbose
        self._not_forked: set[str] = set()

    def take_brought(self, brought: Brought) -> None:
        """Write down how nodes got the packed environment. Not collective."""
        pack = self._pack
        assert pack is not None
        details = {"nodes": list(brought.nodes), "by": brought.by, "reading": list(brought.reading)}
        self._note(
            "environment-unpacked",
            **details,
            reason=brought.why,
            alone=dict(brought.alone),
            unmounted=dict(brought.unmounted),
            seconds=round(brought.seconds, 3),
            sha256=pack.sha256,
        )
        if brought.why:
            instead = (
                "they got it from one another" if brought.by == "tree" else "each of them read it"
            )
            log(
                f"note: sbcast could not copy {pack.path} to the nodes, so {instead}: {brought.why}"
            )
        for nodes, reason in brought.alone_by_reason():
            log(f"note: {nodes} got {pack.path} from no other node, and read it: {reason}")
        for nodes, reason in brought.unmounted_by_reason():
            log(f"note: {nodes} cannot mount {pack.path}, and unpacked it: {reason}")

    def take_not_forked(self, reasons: Iterable[str]) -> None:
        """Write down why ranks imported modules themselves, all or some, each reason once in a run.

        Not collective.
        """
        for reason in reasons:
            if reason not in self._not_forked:
                self._not_forked.add(reason)
                is_of_some = reason.startswith(LEFT_OUT)
                self._note("not-preloaded" if is_of_some else "not-forked", reason=reason)
                if self._is_verbose:
                    of_all = "" if is_of_some else "each rank imports its modules itself: "
                    log(f"note: {of_all}{reason}")
