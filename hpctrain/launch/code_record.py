"""``code.json`` and ``code.patch``: the working tree of a script, as it was when a run began."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpctrain import timeouts
from hpctrain.errors import DamagedFileError
from hpctrain.launch.code_choice import digest_file
from hpctrain.launch.code_diff import names_of_differing
from hpctrain.launch.code_look import NO_ANSWER, TreeLook, start_recording
from hpctrain.launch.code_tree import Patch, TreeState, make_patch
from hpctrain.launch.code_tree import read_state as read_tree_state
from hpctrain.launch.git import Git
from hpctrain.rundir.files import remove_unfinished, write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import damaged, read_content, read_object
from hpctrain.rundir.sweep import is_sweep

_FORMAT = 1
# Untracked files may hold what others are not to see.
_PATCH_MODE = 0o600
# Some trees have many thousands.
_MOST_LEFT_OUT = 100
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class CodeRecorder:
    """Looks at a working tree, and writes what it finds beside a run.

    Git runs in a thread, while the run is submitted or started. `await_records` waits for it, and
    so does Python before it ends, for as long as the limits of git allow.

    Parameters
    ----------
    top
        The tree; None where there is none.
    paths
        The run directory, which is there; None writes nothing.
    storage
        Directory of runs, which are no code.
    look
        What has begun to look at the tree; None where nothing has.
    """

    def __init__(
        self,
        top: str | None,
        *,
        paths: RunPaths | None,
        storage: Path,
        look: TreeLook | None = None,
    ) -> None:
        self._top, self._paths, self._storage = top, paths, storage
        self._state: TreeState | None = None
        self._has_state = threading.Event()
        if top is not None:
            has_begun = look is not None and look.top == top
            self._tree = look if look is not None and has_begun else TreeLook(top)
            start_recording(self._record)

    @property
    def commit(self) -> str | None:
        """The commit, with ``-dirty`` if tracked files differ; None without one. Waits for git."""
        if self._top is None:
            return None
        self._has_state.wait(timeouts.GIT_S + timeouts.GIT_KILLED_S)
        return None if self._state is None else self._state.shown_commit

    def _record(self) -> None:
        top = self._tree.top
        self._state, error = self._tree.result()
        self._has_state.set()
        if self._paths is None:
            return
        patch: Patch | None = None
        if self._state is not None:
            try:
                patch = make_patch(
                    Git(top, timeouts.GIT_PATCH_S),
                    self._state,
                    lists=Git(top, timeouts.GIT_LIST_S),
                    without=_below(top, self._storage),
                )
            except NO_ANSWER as failed:
                error = str(failed)
        # The run may be over, and its directory gone.
        with contextlib.suppress(OSError):
            _write(self._paths, _describe(top, self._state, patch, error), patch)


def look_at_script() -> TreeLook | None:
    """Begin to look at the tree that `record_code` is to record; None without one.

    Not collective.
    """
    script = _directory_of_script()
    top = (None if script is None else find_top(script)) or find_top(Path.cwd())
    return None if top is None else TreeLook(top)


def record_code(
    paths: RunPaths,
    *,
    keeps: bool,
    origin: RunPaths | None = None,
    look: TreeLook | None = None,
) -> CodeRecorder:
    """Begin to record the tree of the script that this process runs. Not collective.

    Parameters
    ----------
    paths
        The run directory, which is there.
    keeps
        Whether the uncommitted changes are kept beside the run.
    origin
        The run that this one repeats, whose record it has.
    look
        What `look_at_script` has begun.
    """
    if origin is not None:
        copy_code(origin, paths)
        top = _recorded_top(origin) or find_top(Path.cwd())
        return CodeRecorder(top, paths=None, storage=paths.root.parent)
    script = _directory_of_script()
    top = None if script is None else find_top(script)
    if top is None or not keeps:
        # Of an earlier fit().
        for path in (paths.code, paths.code_patch):
            path.unlink(missing_ok=True)
        keeps = False
    # What changed in the repository that the script is called from may be none of its code.
    top = top or find_top(Path.cwd())
    recorded = paths if keeps else None
    return CodeRecorder(top, paths=recorded, storage=paths.root.parent, look=look)


def _directory_of_script() -> Path | None:
    """Return where the user's code is; None in an interpreter or a notebook."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        return None
    script = Path(file).resolve()
    # A command of an installed package: the user's own files are where it was called.
    is_installed = Path(sys.prefix).resolve() in script.parents
    return Path.cwd() if is_installed else script.parent


def top_of(paths: RunPaths, plan: Mapping[str, Any]) -> str | None:
    """Return the top of the tree that a run's code is of; None if there is none. Not collective.

    Parameters
    ----------
    paths
        The run directory.
    plan
        Content of its ``plan.json``, which names the script of a run without a record.
    """
    script = Path(str(plan.get("cwd", "")), *map(str, plan.get("argv", ())[:1]))
    is_known = script.is_absolute() and os.path.isfile(script)
    return _recorded_top(paths) or (find_top(script.resolve().parent) if is_known else None)


def _recorded_top(paths: RunPaths) -> str | None:
    try:
        top = (read_code(paths) or {}).get("top")
    except DamagedFileError:
        return None
    return top if isinstance(top, str) and os.path.isdir(top) else None


def commit_of(top: str | None) -> str | None:
    """Return the commit of a tree, as in ``plan.json``. Not collective."""
    if top is None:
        return None
    try:
        return read_tree_state(Git(top, timeouts.GIT_S), top).shown_commit
    except NO_ANSWER:
        return None


def find_top(directory: Path) -> str | None:
    """Return the top of the working tree that a directory is in, or None. Not collective.

    Git is not asked.
    """
    for folder in (directory, *directory.parents):
        if (folder / ".git").exists():
            return str(folder)
    return None


def read_code(paths: RunPaths) -> dict[str, Any] | None:
    """Return the content of a run's ``code.json``, or of its sweep's; None if there is none.

    Not collective.

    Raises
    ------
    DamagedFileError
        If it is damaged.
    """
    for place in _places(paths):
        try:
            content = read_object(place.code)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        files, commit = content.get("files", {}), content.get("commit")
        if not isinstance(files, dict) or not _is_commit(commit):
            raise damaged(place.code, "its files or its commit are none")
        if isinstance(number := content.get("format"), int) and number > _FORMAT:
            raise damaged(place.code, f"its format is {number}, of a newer hpctrain")
        if not (all(map(_is_below_top, files)) and _is_list_of_paths(content.get("left_out", []))):
            raise damaged(place.code, "its paths are none below the tree")
        return content
    return None


def _places(paths: RunPaths) -> list[RunPaths]:
    """Return where the record of a run may be: beside it, or beside the sweep of a trial."""
    above = paths.root.parent
    return [paths, RunPaths(above)] if is_sweep(above) else [paths]


def _is_commit(commit: object) -> bool:
    return commit is None or (isinstance(commit, str) and _COMMIT.fullmatch(commit) is not None)


def _is_below_top(path: str) -> bool:
    return "\0" not in path and not os.path.isabs(path) and ".." not in path.split("/")


def _is_list_of_paths(entries: object) -> bool:
    return isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("path", ""), str) for entry in entries
    )


def copy_code(origin: RunPaths, paths: RunPaths) -> None:
    """Give a replay the record of the run that it repeats. Not collective."""
    for place in _places(origin):
        with contextlib.suppress(OSError):
            content = read_content(place.code)
            with contextlib.suppress(FileNotFoundError):
                patch = read_content(place.code_patch)
                write_atomic(paths.code_patch, patch, mode=_PATCH_MODE)
            write_atomic(paths.code, content)
            return


def keep_code(sweep: RunPaths, trials: Iterable[RunPaths]) -> None:
    """Put the record of a sweep beside those of its trials that have begun, and have none.

    Not collective. They keep it when that of the sweep is written anew. Those that go on drop it.
    """
    for trial in trials:
        if trial.code.exists() or not trial.plan.exists():
            continue
        # code.json is the last one, so that none is without its patch.
        for own, theirs in ((sweep.code_patch, trial.code_patch), (sweep.code, trial.code)):
            with contextlib.suppress(OSError):
                _link(own, theirs)


def _link(path: Path, to: Path) -> None:
    """Give a file a second name, which stays when the first one is replaced; else copy it."""
    to.unlink(missing_ok=True)
    try:
        os.link(path, to)
    except FileNotFoundError:
        raise
    except OSError:
        # A file system without links, or a directory of another one.
        write_atomic(to, read_content(path), mode=path.stat().st_mode & 0o777)


def find_edited(code: Mapping[str, Any], *, without: frozenset[str]) -> list[str] | None:
    """Return the files of a tree that are not as a run recorded them. Not collective.

    Those that were untracked when the run began count only if they are part of the record.

    Parameters
    ----------
    code
        Content of ``code.json``.
    without
        Paths of files that do not count.

    Returns
    -------
    list of str or None
        Paths below the top of the tree; None if that cannot be known.
    """
    top, commit, files = code.get("top"), code.get("commit"), code.get("files", {})
    if not isinstance(top, str) or code.get("error") is not None:
        return None
    differing: set[str] = set()
    if commit is not None:
        try:
            differing = set(names_of_differing(Git(top, timeouts.GIT_S), top, commit))
        except NO_ANSWER:
            return None
    entries = [entry for entry in code.get("left_out", ()) if isinstance(entry, dict)]
    left_out = {entry.get("path") for entry in entries}
    if any(entry.get("tracked") for entry in entries):
        # Which others had changed is not known.
        differing &= set(files)
    edited = [
        path
        for path in sorted(differing | set(files))
        if (path not in files or digest_file(Path(top, path)) != files[path])
        and path not in left_out
    ]
    return [path for path in edited if os.path.join(top, path) not in without]


def _below(top: str, storage: Path) -> list[str]:
    """Return a directory of runs as a path from the top of a tree; none if it is not below it."""
    relative = os.path.relpath(os.path.realpath(storage), os.path.realpath(top))
    is_below = relative != "." and not relative.startswith("..")
    return [relative] if is_below else []


def _describe(
    top: str, state: TreeState | None, patch: Patch | None, error: str | None
) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "top": top,
        "commit": None if state is None else state.commit,
        "branch": None if state is None else state.branch,
        "dirty": None if state is None else state.is_dirty,
        "patch": hashlib.sha256(patch.content).hexdigest() if patch and patch.content else None,
        "files": {} if patch is None else patch.files,
        "left_out": [] if state is None or patch is None else _left_out(state, patch),
        "error": error,
    }


def _left_out(state: TreeState, patch: Patch) -> list[dict[str, Any]]:
    tracked = {change.path for change in state.changed} | {path for path, _ in state.left_out}
    # find_edited() reads the changes of tracked files from these entries.
    ordered = sorted(patch.left_out, key=lambda entry: entry[0] not in tracked)
    listed: list[dict[str, Any]] = [
        {"path": path, "why": why} for path, why in ordered[:_MOST_LEFT_OUT]
    ]
    if rest := ordered[_MOST_LEFT_OUT:]:
        count = sum(path in tracked for path, _ in rest)
        listed.append({"path": f"and {len(rest)} more", "why": "not listed", "tracked": count})
    return listed


def _write(paths: RunPaths, content: Mapping[str, Any], patch: Patch | None) -> None:
    remove_unfinished(paths.code, paths.code_patch)
    if patch is not None and patch.content:
        write_atomic(paths.code_patch, patch.content, mode=_PATCH_MODE)
    else:
        paths.code_patch.unlink(missing_ok=True)
    write_atomic(paths.code, json.dumps(content, indent=1).encode())
