"""Which frames of a traceback are shown: those of the user's code, not those of hpctrain."""

from __future__ import annotations

import itertools
import re
import sysconfig
import traceback
from pathlib import Path

_OUR_FOLDER = f"{Path(__file__).parent}/"
# File and function of what lies between the frames of the user and ours.
_IN_BETWEEN = (
    # What dataclasses generate.
    ("<string>", "__init__"),
    ("contextlib.py", "__exit__"),
    # IPython's, around a cell.
    ("interactiveshell.py", "run_code"),
)
_FRAME = re.compile(r'^(  File ".*", line .*\n(?:    .*\n)*)', re.MULTILINE)
# Of faulthandler, the most recent call first: '  File "/x/train.py", line 3 in step'.
_STACK_LINE = re.compile(r'  File "(.*)", line \d+ in .+')


def format_user_traceback(error: BaseException, own: type[BaseException]) -> str:
    """Return a traceback without the frames of hpctrain. Not collective.

    The exception itself keeps all frames, for debuggers. An error of ours explains itself: what it
    was raised from is left out, unless only that has frames of the user's. Another exception keeps
    our frames at its end, where it may come from, and all of them if no frame is the user's.

    Parameters
    ----------
    error
        The exception.
    own
        The base class of our errors.
    """
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    _keep_user_frames(shown, error, own)
    return "".join(shown.format()).rstrip()


def fold_library_frames(text: str) -> str:
    """Return a traceback with the last of several frames of installed packages in a row.

    Not collective. It stays whole if its first frame is of a package, which then is the user's.
    """
    parts = [part for part in _FRAME.split(text) if part]
    first = next(filter(_FRAME.match, parts), "")
    if _is_library_frame(first):
        return text
    folded = []
    for is_library, group in itertools.groupby(parts, _is_library_frame):
        run = list(group)
        if is_library and len(run) > 2:
            run = [f"  [{len(run) - 1} frames of installed packages]\n", run[-1]]
        folded += run
    return "".join(folded)


def user_part_of_stack(stack: str) -> str:
    """Return a stack that faulthandler wrote without our frames around the user's function.

    Not collective.
    """
    lines = stack.rstrip().splitlines()
    end = len(lines)
    while end and (frame := _STACK_LINE.fullmatch(lines[end - 1])):
        if not (_is_ours(frame[1]) or _is_runpy(frame[1])):
            break
        end -= 1
    # None is left of what hpctrain itself does, before or after that function.
    has_frames = any(_STACK_LINE.fullmatch(line) for line in lines[:end])
    return "\n".join(lines[:end] if has_frames else lines)


def _keep_user_frames(
    shown: traceback.TracebackException, error: BaseException, own: type[BaseException]
) -> None:
    frames = list(shown.stack)
    kept = [frame for frame in frames if not _is_our_frame(frame)]
    if isinstance(error, own):
        if kept:
            shown.__cause__ = shown.__context__ = None
    elif all(_is_library(frame.filename) for frame in kept):
        kept = frames
    else:
        kept += _ours_at_end(frames)
    stack = traceback.StackSummary.from_list(kept)
    # None leaves the heading out, too.
    shown.stack = stack if kept else None  # type: ignore[assignment]
    causes = (shown.__cause__, error.__cause__), (shown.__context__, error.__context__)
    for inner, cause in causes:
        if inner is not None and cause is not None:
            _keep_user_frames(inner, cause, own)


def _ours_at_end(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    end = len(frames)
    while end and _is_ours(frames[end - 1].filename):
        end -= 1
    return frames[end:]


def _is_our_frame(frame: traceback.FrameSummary) -> bool:
    return (
        _is_ours(frame.filename) or (frame.filename.rpartition("/")[2], frame.name) in _IN_BETWEEN
    )


def _is_library_frame(part: str) -> bool:
    return bool(_FRAME.match(part)) and _is_library(part.split('"')[1])


def _is_library(filename: str) -> bool:
    paths = sysconfig.get_paths()
    return filename.startswith((paths["stdlib"], paths["purelib"], paths["platlib"], "<frozen "))


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OUR_FOLDER)


def _is_runpy(filename: str) -> bool:
    return filename == "<frozen runpy>" or filename.endswith("/runpy.py")
