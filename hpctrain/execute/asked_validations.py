"""Warnings about how the ranks of a report ask for the validation of its checkpoint."""

from __future__ import annotations

import json

from hpctrain.execute.tracker import ReportRound
from hpctrain.log import log

_MOST_RANKS = 8


def warn_of_validations(round_: ReportRound, warned: set[str]) -> None:
    """Log that ranks ask for different validations, or for one without a checkpoint.

    Not collective.

    Parameters
    ----------
    round_
        The report.
    warned
        What the run has warned of already, which is logged once; this is added to it.
    """
    asked = round_.validations
    if not asked:
        return
    if not round_.parts:
        kind = "no checkpoint"
        text = (
            f"{_name_ranks(list(asked))} asked for a validation, but no rank gave a checkpoint, "
            f"and that is what is validated. Give one, or leave validation out."
        )
    else:
        ranks_of: dict[str, list[int]] = {}
        for rank, task in asked.items():
            ranks_of.setdefault(json.dumps(task, sort_keys=True), []).append(rank)
        if len(ranks_of) == 1:
            return
        kind = "different"
        wishes = [f"{_name_ranks(ranks)} for {task:.120}" for task, ranks in ranks_of.items()]
        text = (
            f"ranks asked for different validations: {'; '.join(wishes)}. "
            f"That of rank {min(asked)}, the lowest, counts. Give the same on all ranks, or on one."
        )
    if kind not in warned:
        warned.add(kind)
        log(f"warning: report {round_.report}: {text}")


def _name_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_RANKS]))
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
