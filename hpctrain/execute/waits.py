"""Whether ranks wait for others, by their stacks and by what they have recorded, and for whom."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from hpctrain.execute.progress import Progress
from hpctrain.execute.tree_waits import place_in_trees, waits_in_trees
from hpctrain.frames import innermost_user_frame
from hpctrain.rundir.display import list_ranks
from hpctrain.rundir.files import make_directory
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.group_record import GroupRecord

if TYPE_CHECKING:
    from hpctrain.execute.pending_calls import Explanation

# Functions in which a rank waits for others: those of hpctrain, of torch.distributed, ...
_WAITS_IN_PYTHON = re.compile(
    r"barrier|all_?reduce|all_?gather|all_?to_?all|reduce_scatter|broadcast|bcast|^_?wait|^recv|"
    r"^report$|_engine_run_backward|synchronize",
    re.IGNORECASE,
)
# ... and below Python, where libraries seldom keep the names of their functions.
_WAITS_BELOW = re.compile(r"\bP?MPI_|libmpi|libnccl|gloo::|libfabric|libuc[pts]\b")
_PYTHON_FRAMES_LOOKED_AT = 4
# Of Python, as faulthandler prints them: '  File "/x/train.py", line 3 in step'; as py-spy does:
# '    step (train.py:3)'.
_FRAME = re.compile(r'  File ".*", line \d+ in (.+)|    (\S+) \(.*\.py:\d+\)')
_MOST_PLACES = 3


def ask_where_ranks_are(
    progress: Progress, broadcast: Callable[[str], None], paths: RunPaths, attempt: int
) -> None:
    """Ask all ranks for their stacks and what they have recorded. Not collective.

    Parameters
    ----------
    progress
        Takes the answers in.
    broadcast
        Sends a command to all ranks.
    paths, attempt
        Where they write their stacks.
    """
    progress.ask()
    # Where it cannot be made, there are still the answers of the ranks themselves.
    with contextlib.suppress(OSError):
        make_directory(paths.stacks(attempt), below=paths.root)
    broadcast("dump-stacks")


def explain_waits(
    progress: Progress, failed: Mapping[int, Sequence[GroupRecord]] | None = None
) -> Explanation:
    """Return which collective ranks wait in, and who has not called it.

    Not collective. Libraries that record collectives know it; of others (MPI, XGBoost, LightGBM)
    the stacks show who waits, and where.

    Parameters
    ----------
    progress
        After the ranks have been asked where they are.
    failed
        What ranks have recorded whose collective has failed.
    """
    # Only where ranks wait for long.
    from hpctrain.execute.pending_calls import Explanation, explain_pending_calls

    places = {rank: _place(progress, rank) for rank in range(len(progress))}
    explanation = explain_pending_calls({**progress.collectives, **(failed or {})}, places)
    return explanation if explanation.lines else Explanation(_explain_by_stacks(progress, places))


def _explain_by_stacks(progress: Progress, places: dict[int, str]) -> tuple[str, ...]:
    waits: dict[str, list[int]] = {}
    others: dict[str, list[int]] = {}
    for rank in progress.unfinished():
        if rank in progress.stacks or rank in progress.seen:
            kind = waits if rank_waits(progress, rank) else others
            kind.setdefault(places[rank], []).append(rank)
    if not (waits and others):
        return ()
    lines = []
    for kind, one, many in (
        (waits, "waits for other ranks", "wait for other ranks"),
        (others, "does not wait for others", "do not wait for others"),
    ):
        for place, ranks in list(kind.items())[:_MOST_PLACES]:
            is_one = len(ranks) == 1
            who = f"rank {ranks[0]} {one}" if is_one else f"ranks {list_ranks(ranks)} {many}"
            lines.append(f"{who}: {place}")
    return tuple(lines)


def _place(progress: Progress, rank: int) -> str:
    """Return where a rank is: its line of the training function, if it is known."""
    stack = progress.stacks.get(rank, "") if progress.phase(rank) == "training" else ""
    place = innermost_user_frame(stack) or place_in_trees(stack)
    if rank in progress.returned():
        return f"returned after report {progress.reports(rank)}"
    return place or progress.describe(rank)


def rank_waits(progress: Progress, rank: int) -> bool:
    """Return whether a rank waits for others, by all that is known of it. Not collective."""
    stack = progress.stacks.get(rank, "")
    native = main_thread_as_seen(progress.seen.get(rank, ""))
    if waits_for_others(stack) or waits_for_others(native):
        return True
    return waits_in_trees(stack, native)


def waits_for_others(stack: str) -> bool:
    r"""Return whether a stack ends in something that waits for other ranks. Not collective.

    Parameters
    ----------
    stack
        Of one thread, the most recent call first, as faulthandler or py-spy prints it.

    Examples
    --------
    >>> waits_for_others('  File "/x/mpi.py", line 75 in wait_barrier')
    True
    >>> waits_for_others("    0x7f983711bf95 (libmpi.so.12)\n    step (train.py:12)")
    True
    >>> waits_for_others("    step (train.py:12)")
    False
    """
    python_frames = 0
    for line in stack.splitlines():
        if found := _FRAME.fullmatch(line):
            python_frames += 1
            if _WAITS_IN_PYTHON.search(found[1] or found[2].rpartition(".")[2]):
                return True
            if python_frames == _PYTHON_FRAMES_LOOKED_AT:
                return False
        elif line.startswith("    ") and _WAITS_BELOW.search(line):
            return True
    return False


def main_thread_as_seen(seen: str) -> str:
    """Return what py-spy saw of the main thread, where the training function runs."""
    before, *threads = re.split(r"^(?=Thread )", seen, flags=re.MULTILINE)
    return before + next((t for t in threads if '"MainThread"' in t), "".join(threads[:1]))
