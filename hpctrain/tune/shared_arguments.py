"""Large arguments of `hpctrain.tune.with_parameters`: stored once for all trials of a sweep."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpctrain.errors import ConfigError, DamagedFileError
from hpctrain.own_files import DIRECTORY_MODE, FILE_MODE
from hpctrain.plan import spec
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.reading import damaged
from hpctrain.rundir.trust import read_own
from hpctrain.tune.trainable import Trainable, WithResources
from hpctrain.tune.trial_function import name_function
from hpctrain.worker.context import active_worker

LARGE_BYTES = 2**20
"""A larger argument, pickled, is in a file of its own; others are in the spec of each trial."""
_FOLDER = "parameters"
_OWNER_ONLY = FILE_MODE & 0o600


@dataclass(frozen=True, kw_only=True)
class SharedArguments:
    """A function that is given arguments which are files beside the trials of its sweep."""

    function: Callable[..., Any]
    names: Mapping[str, str]
    """What each file is called, by the name of the argument: the digest of the value."""

    def __getattr__(self, name: str) -> Any:
        """Return the name of the function, and what is left to be given to it."""
        if name == "__name__":
            return name_function(self.function)
        if name == "__signature__":
            given = dict.fromkeys(self.names)
            return inspect.signature(functools.partial(self.function, **given))
        raise AttributeError(name)

    def __call__(self, *arguments: Any) -> Any:
        """Read the files and call the function. Collective: one rank reads for all."""
        worker = active_worker("the function of a trial")
        root, values = worker.context.get_storage(), {}
        for argument, name in self.names.items():
            content = _read(root, argument, name) if worker.comm.rank == 0 else None
            values[argument] = spec.unpack(worker.comm.bcast(content))
        return self.function(*arguments, **values)


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What a sweep tries, and the files that it needs."""

    trainable: Trainable
    """Without the large arguments."""
    contents: dict[str, bytes] = field(default_factory=dict)
    """The pickles that are not written yet, by the name of the file."""

    def write(self, root: Path) -> None:
        """Write the files into the directory of a sweep, unless they are there. Not collective.

        What is damaged, or others could have written, is replaced.

        Raises
        ------
        OSError
            If they cannot be written.
        """
        while self.contents:
            name, content = self.contents.popitem()
            path = _path(root, name)
            path.parent.mkdir(DIRECTORY_MODE, exist_ok=True)
            if not _is_intact(path, name):
                write_atomic(path, content, mode=_OWNER_ONLY, durable=True)


def share_arguments(trainable: Trainable) -> Sharing:
    """Return a trainable whose large arguments are files. Not collective. Nothing is written.

    Raises
    ------
    ConfigError
        If an argument cannot be pickled.
    """
    if isinstance(trainable, WithResources):
        inside = share_arguments(trainable.function)
        assert callable(inside.trainable)
        shared = replace(trainable, function=inside.trainable)
        return Sharing(trainable=shared, contents=inside.contents)
    if not isinstance(trainable, functools.partial):
        return Sharing(trainable=trainable)
    names, contents = {}, {}
    for argument, value in trainable.keywords.items():
        content = spec.pack(value, what=f"with_parameters({argument}=...)")
        if len(content) > LARGE_BYTES:
            names[argument] = spec.make_fingerprint(content)
            contents[names[argument]] = content
    if not names:
        return Sharing(trainable=trainable)
    rest = {name: value for name, value in trainable.keywords.items() if name not in names}
    function = trainable.func
    if rest or trainable.args:
        function = functools.partial(function, *trainable.args, **rest)
    return Sharing(trainable=SharedArguments(function=function, names=names), contents=contents)


def _path(sweep: Path, name: str) -> Path:
    return sweep / _FOLDER / f"{name}.pkl"


def _is_intact(path: Path, name: str) -> bool:
    try:
        return spec.make_fingerprint(read_own(path)) == name
    except (FileNotFoundError, ConfigError, DamagedFileError):
        return False


def _read(run: Path, argument: str, name: str) -> bytes:
    """Return the pickle of an argument, for a trial or for what replays one.

    Raises
    ------
    ConfigError
        If it is gone, or others could have written it.
    DamagedFileError
        If it is not what was written.
    """
    paths = [_path(sweep, name) for sweep in _sweeps_of(run)]
    for path in paths:
        try:
            content = read_own(path)
        except FileNotFoundError:
            continue
        if spec.make_fingerprint(content) != name:
            raise damaged(path, "its content is not what was written")
        return content
    raise ConfigError(
        f"{paths[0]} is gone, which has the argument {argument!r} of the function. It belongs to "
        f"the sweep: bring it back, or copy {_FOLDER}/ along with a trial."
    )


def _sweeps_of(run: Path) -> Iterator[Path]:
    yield run.parent
    try:
        origin = read_plan(RunPaths(run)).get("replay_of")
    except (OSError, DamagedFileError):
        return
    if isinstance(origin, dict) and isinstance(origin.get("path"), str):
        yield Path(origin["path"]).parent
