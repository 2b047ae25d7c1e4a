"""Waits for other ranks inside of XGBoost and LightGBM, which do not show in Python's functions."""

from __future__ import annotations

import re

# The modules that call the libraries, and functions of them that are collective.
_CALLS = re.compile(
    r'  File ".*(?<!/hpctrain)/((?:xgboost/core|lightgbm/basic)\.py)", line (\d+) in '
    r"(_?init\w*|__init\w*|update|boost|eval_set|eval|__inner_eval|__boost|construct)"
)
# Of the collectives that LightGBM calls back for.
_OURS = re.compile(r'  File ".*/hpctrain/(?:lightgbm/network|worker/mpi)\.py", line \d+ in (\w+)')
# Of py-spy; a thread that waits is "idle".
_RUNS = re.compile(r"^Thread \S+ \(active\b", re.MULTILINE)


def place_in_trees(stack: str) -> str:
    r"""Return which call of XGBoost or LightGBM a thread is in; empty if in none. Not collective.

    Parameters
    ----------
    stack
        Of one thread, the most recent call first, as faulthandler prints it.

    Examples
    --------
    >>> place_in_trees('  File "/lib/xgboost/core.py", line 2391 in update\n  File "/x/t.py"')
    'xgboost/core.py:2391, in update'
    """
    collective = ""
    for line in stack.splitlines():
        if ours := _OURS.fullmatch(line):
            # The outermost is what the library asked for; "call" is around each.
            collective = ours[1] if ours[1] != "call" else collective
        elif found := _CALLS.fullmatch(line):
            place = f"{found[1]}:{found[2]}, in {found[3]}"
            return f"{collective} of {place}" if collective else place
        elif line.startswith("  File "):
            return ""
    return ""


def waits_in_trees(stack: str, seen: str) -> bool:
    """Return whether a thread waits in a collective of XGBoost or LightGBM. Not collective.

    XGBoost waits on a thread of its own that talks to the other ranks, and its functions have no
    names outside: only by its sleep does the thread differ from one that grows a tree.

    Parameters
    ----------
    stack
        As of `place_in_trees`.
    seen
        The same thread as py-spy saw it; empty without py-spy: then only a wait in a collective of
        LightGBM is known, which calls hpctrain back for it.
    """
    place = place_in_trees(stack)
    is_collective = " of lightgbm/" in place
    return bool(place) and (is_collective or (bool(seen) and _RUNS.search(seen) is None))
