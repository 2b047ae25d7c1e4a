"""The restarts in the ledger, each as a sentence for the display and the status. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

_LONGEST = 300


def announce(event: Mapping[str, Any]) -> str:
    """Return an event of the ledger as a sentence on a restart; empty if it is not about one.

    Not collective.

    Examples
    --------
    >>> announce({"event": "restart", "what": "rank 1 on node7 was killed (SIGKILL)", "number": 1,
    ...           "budget": 2, "checkpoint": "000006"})
    'rank 1 on node7 was killed (SIGKILL); restart 1 of 2 from checkpoint 000006'
    """
    name = event["event"]
    begin = describe_start(event.get("checkpoint"))
    if name == "restart":
        # `after`: what versions before wrote.
        what = event.get("what") or _first_line(event.get("after"))
        number, budget = event.get("number"), event.get("budget")
        count = f" {number}" if number else ""
        of = f" of {budget}" if number and isinstance(budget, int) and budget >= 0 else ""
        return f"{what}; restart{count}{of} from {begin}"
    if name == "requeued":
        job = event.get("job_id")
        return f"{event.get('why')}; job {job} is queued again and resumes from {begin}"
    if name == "successor" and event.get("why"):
        return f"{event['why']}; job {event.get('job_id')} resumes from {begin}"
    if name == "left-to-tuner":
        return f"{event.get('why')}; another job, of the tuner, resumes from {begin}"
    if name == "executor-lost":
        return f"node {event.get('host')}, which had the executor, is lost; another job resumes"
    return ""


def announcements(
    events: Iterable[Mapping[str, Any]],
    describe: Callable[[Mapping[str, Any]], str] = announce,
) -> list[str]:
    """Return the announcements since a person last called ``fit()``.

    Not collective.

    Parameters
    ----------
    events
        The ledger, or its end.
    describe
        Returns the sentence of an event; empty for one that is not announced.
    """
    sentences: list[str] = []
    for event in events:
        if event["event"] == "fit" and not event.get("continues"):
            sentences.clear()
        elif sentence := describe(event):
            sentences.append(sentence)
    return sentences


def describe_start(checkpoint: object) -> str:
    """Return from where an attempt begins, in words. Not collective."""
    return f"checkpoint {checkpoint}" if checkpoint else "the beginning"


def _first_line(text: object) -> str:
    return (str(text or "it failed").splitlines() or [""])[0][:_LONGEST]
