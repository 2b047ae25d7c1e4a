"""`Checkpoint`: a handle on a directory.

Every rank imports this module at its start, so what only some methods need is imported there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hpctrain import pickle_trust
from hpctrain.checkpoint_class import DictOf, choose_class, read_class, write_class
from hpctrain.checkpoint_copy import FilesAsDict, pack_directory, unpack_into
from hpctrain.checkpoint_files import DICT_NAME, OF_THE_RUN
from hpctrain.checkpoint_handle import DirectoryHandle
from hpctrain.checkpoint_uri import split_uri
from hpctrain.constants import FS_CHECKPOINT_KEY, MODEL_KEY, PREPROCESSOR_KEY
from hpctrain.errors import ConfigError
from hpctrain.own_files import write_own
from hpctrain.path_string import expand_home

if TYPE_CHECKING:
    import pyarrow.fs

    from hpctrain.preprocessors import Preprocessor

C = TypeVar("C", bound="Checkpoint")


class Checkpoint(DirectoryHandle):
    """A handle on a directory that holds a model, or whatever else a training function saved.

    The handle is small: it can be pickled, kept, and passed around. On a shared filesystem every
    process reads the directory itself, so nothing is copied.

    Parameters
    ----------
    path
        The directory. It may be made later: whatever reads it, ``report()``,
        ``resume_from_checkpoint=`` and predictors refuse one that does not exist.
    filesystem
        Of Arrow, as in Ray Train: None or the local one, since all nodes see the directory.
    local_path, data_dict, uri
        As in Ray Train 2.6, one of them in place of `path`: a directory that exists, a dict as for
        `from_dict`, or a URI as for `from_uri`.

    Raises
    ------
    ConfigError
        If it is not a directory.
    """

    _may_be_made_later: ClassVar[bool] = True
    """Whether a handle can be had before its directory."""
    _uri: str | None = None
    """Where the directory was copied from."""
    _architecture: Any = None
    """The model of torch that the handle was made of; the weights are in the directory."""
    _given: tuple[dict[str, Any], Callable[[], Any]] | None = None
    """What the handle was made of, if that has a model of torch, and a weak reference to that."""
    _given_preprocessor: Callable[[], Preprocessor | None] | None = None
    """A weak reference to what the handle was given."""

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        filesystem: pyarrow.fs.FileSystem | None = None,
        *,
        local_path: str | PathLike[str] | None = None,
        data_dict: Mapping[str, Any] | None = None,
        uri: str | None = None,
    ) -> None:
        given = [one for one in (path, local_path, data_dict, uri) if one is not None]
        if len(given) != 1:
            raise ConfigError(
                f"Checkpoint() was given {len(given)} of path, local_path, data_dict and uri. "
                f"Give it one of them."
            )
        if data_dict is not None:
            self._take(Checkpoint.from_dict(data_dict))
            if type(self) is not Checkpoint:
                write_class(type(self), self.path)
            return
        if uri is not None:
            self._take(Checkpoint.from_uri(uri))
            return
        path = local_path if path is None else path
        assert path is not None
        if filesystem is not None and getattr(filesystem, "type_name", None) != "local":
            raise ConfigError(
                f"Checkpoint({str(path)!r}, filesystem={filesystem!r}): a checkpoint is a "
                f"directory that all nodes see. Copy it to such a filesystem, and leave filesystem "
                f"out."
            )
        super().__init__(path)
        if local_path is not None or not self._may_be_made_later or self.path.exists():
            self._refuse_missing()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path only: a copy of the handle does not own the directory."""
        return _reopen if self._was_seen else Checkpoint, (self.path,)

    def _take(self, made: Checkpoint) -> None:
        """Become a handle on the directory that another one has just made."""
        vars(self).update(vars(made))
        # The directory lives as long as the handle that made it.
        weakref.finalize(self, lambda _: None, made)

    @classmethod
    def from_directory(cls: type[C], path: str | PathLike[str]) -> C:
        """Return a handle on `path`, which stays the caller's. Not collective.

        It is of the class whose `from_dict` made the directory, if this process has that, and it
        still takes a path.

        Raises
        ------
        ConfigError
            If it is no directory, or that class has nothing to do with this one.
        """
        chosen = choose_class(cls, read_class(Checkpoint, expand_home(path)))
        try:
            checkpoint = chosen(path)
        except ConfigError:
            raise
        except Exception:
            # A class that was edited since is no reason to lose a model, or a run.
            if chosen is cls:
                raise
            checkpoint = cls(path)
        checkpoint._refuse_missing()
        return checkpoint

    @classmethod
    def from_dict(cls: type[C], data: Mapping[str, Any]) -> C:
        """Return a handle on a new temporary directory that holds `data`, pickled.

        Not collective. The directory lives as long as this handle. A preprocessor at
        ``constants.PREPROCESSOR_KEY`` is stored with `set_preprocessor`; what `to_dict` made of a
        directory becomes its files again. Tensors are on the CPU when they are read, so that ranks
        with different GPUs save the same. What `to_dict` of a subclass gave becomes that again.

        Raises
        ------
        ConfigError
            If it was given by a class that has nothing to do with this one.
        """
        from hpctrain.plan import spec

        chosen = choose_class(cls, getattr(data, "of", None) if isinstance(data, DictOf) else None)
        checkpoint = chosen._make()
        own = {key: value for key, value in data.items() if key != PREPROCESSOR_KEY}
        files = own.get(FS_CHECKPOINT_KEY)
        if isinstance(files, bytes):
            unpack_into(checkpoint.path, files)
            # Said without the bytes, which are there as files.
            own[FS_CHECKPOINT_KEY] = None
        if not isinstance(files, bytes) or len(own) > 1:
            content = spec.pack(own, what="the checkpoint", canonical=True)
            write_own(checkpoint.path / DICT_NAME, content)
            if hasattr(own.get(MODEL_KEY), "load_state_dict"):
                pickle_trust.remember(content)
                with suppress(TypeError):
                    checkpoint._given = (own | {MODEL_KEY: None}, weakref.ref(own[MODEL_KEY]))
        if chosen is not Checkpoint:
            write_class(chosen, checkpoint.path)
        if data.get(PREPROCESSOR_KEY) is not None:
            checkpoint.set_preprocessor(data[PREPROCESSOR_KEY])
        return checkpoint

    @classmethod
    def from_checkpoint(cls: type[C], other: Checkpoint) -> C:
        """Return a handle of this class on the same directory. Not collective."""
        checkpoint = cls(other.path)
        checkpoint._architecture = other._architecture
        checkpoint._given = other._given
        checkpoint._given_preprocessor = other._given_preprocessor
        checkpoint._is_temporary, checkpoint._uri = other._is_temporary, other._uri
        # A temporary directory lives as long as the handle that made it.
        weakref.finalize(checkpoint, lambda _: None, other)
        return checkpoint

    @classmethod
    def from_bytes(cls: type[C], data: bytes) -> C:
        """Return a handle on a new temporary directory with what `to_bytes` read.

        Not collective. Nothing is unpickled. The directory lives as long as this handle. Pickles
        in it have to be trusted, unless the bytes are what `to_bytes` gave in this process.

        Raises
        ------
        CheckpointError
            If they are no bytes of `to_bytes`.
        """
        checkpoint = cls._make()
        unpack_into(checkpoint.path, data)
        return checkpoint

    @classmethod
    def from_uri(cls: type[C], uri: str) -> C:
        """Return a handle on what is at a ``file://`` or a ``memory://`` URI.

        Not collective. A file's is the directory itself; one in memory is copied, and the copy
        lives as long as this handle. Its class is chosen as by `from_directory`.

        Raises
        ------
        ConfigError
            If it is another URI, or there is no such checkpoint.
        """
        scheme, path = split_uri(uri, "from_uri")
        if scheme == "file":
            return cls.from_directory(path)
        if uri.rstrip("/") not in _in_memory:
            raise ConfigError(
                f"Checkpoint.from_uri({uri!r}): this process has put no checkpoint there. "
                f"memory:// is within one process; use a directory to hand it to another."
            )
        stored = _in_memory[uri.rstrip("/")]
        copy = choose_class(cls, read_class(Checkpoint, stored.path))._make()
        stored.to_directory(copy.path)
        copy._uri = uri
        return copy

    def to_uri(self, uri: str) -> str:
        """Copy the checkpoint to a ``file://`` or ``memory://`` URI and return where it is.

        Not collective. As in Ray Train, a ``file://`` URI returns the directory. What is in memory
        is a temporary directory, which this process keeps until it ends.

        Raises
        ------
        ConfigError
            If it is another URI.
        """
        scheme, path = split_uri(uri, "to_uri")
        if scheme == "file":
            return self.to_directory(path)
        copy = Checkpoint._make()
        self.to_directory(copy.path)
        _in_memory[uri.rstrip("/")] = copy
        return uri

    @property
    def uri(self) -> str | None:
        """The directory as a ``file://`` URI, or the one that it was copied from.

        None if there is no such directory, or if it lives as long as the handle only: that of
        `from_dict` and `from_bytes`. Copy it with `to_uri` or `to_directory` to have one.
        """
        if self._uri is not None:
            return self._uri
        return None if self._is_temporary or not self.path.is_dir() else Path(self.path).as_uri()

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` was given, or else all files as bytes, under one key.

        Not collective. This unpickles what `from_dict` was given, its preprocessor included: open
        only checkpoints that you trust. Of another checkpoint nothing is opened: the value at
        ``constants.FS_CHECKPOINT_KEY`` has its files, and `from_dict` makes them again.
        """
        path = self.path / DICT_NAME
        if not path.exists():
            files = FilesAsDict({FS_CHECKPOINT_KEY: self.to_bytes()})
            files.path = str(self.path)
            files.of = self._own_class()
            return files
        from hpctrain.plan import spec

        data: dict[str, Any] = spec.unpack(path.read_bytes())
        if not isinstance(data, dict):
            # Somebody else has written the file.
            return data
        if FS_CHECKPOINT_KEY in data and data[FS_CHECKPOINT_KEY] is None:
            data[FS_CHECKPOINT_KEY] = pack_directory(self.path, leave_out=(*OF_THE_RUN, DICT_NAME))
        elif (preprocessor := self.get_preprocessor(trusted=True)) is not None:
            data[PREPROCESSOR_KEY] = preprocessor
        if (of := self._own_class()) is None:
            return data
        named = DictOf(data)
        named.of = of
        return named

    def _own_class(self) -> type[Checkpoint] | None:
        """Return the class of the handle, None for that of all."""
        return None if type(self) is Checkpoint else type(self)

    def get_preprocessor(self, *, trusted: bool = False) -> Preprocessor | None:
        """Return the fitted preprocessor that is stored beside the model, or None.

        Not collective. The handle that was given one returns that itself, if it has not changed.

        Parameters
        ----------
        trusted
            Whether functions and objects that are not hpctrain's own may be unpickled, though
            another user can have written them. That runs code.

        Raises
        ------
        CheckpointError
            If it is damaged, or holds a pickle that another user can have written and is not
            trusted.
        """
        self._refuse_missing()
        from hpctrain.preprocessors import storage

        if storage.has_preprocessor(self.path):
            given = None if self._given_preprocessor is None else self._given_preprocessor()
            if given is not None and storage.is_stored(given, self.path):
                return given
            return storage.load(self.path, trusted=trusted)
        # Ray Train 2.0 to 2.6 pickle it into a file of this name.
        pickled = self.path / PREPROCESSOR_KEY
        if not pickled.is_file():
            return None
        from hpctrain.preprocessors.pickled import load_pickled

        return load_pickled(pickled, trusted=trusted)

    def set_preprocessor(self, preprocessor: Preprocessor) -> None:
        """Store a preprocessor beside the model. Not collective.

        Raises
        ------
        CheckpointError
            If the checkpoint is committed already.
        ConfigError
            If it is none.
        """
        self._refuse_if_committed("the preprocessor")
        from hpctrain.preprocessors import storage

        storage.save(preprocessor, self.path)
        self._given_preprocessor = weakref.ref(preprocessor)


_in_memory: dict[str, Checkpoint] = {}
"""What `Checkpoint.to_uri` put at ``memory://`` URIs, without the last slash."""


def _reopen(path: str) -> Checkpoint:
    """Return a handle that was pickled when its directory was there."""
    checkpoint = Checkpoint(path)
    refuse_missing(checkpoint)
    return checkpoint


def refuse_missing(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint of a directory that has never been there. Not collective.

    Raises
    ------
    ConfigError
        If so.
    """
    checkpoint._refuse_missing()


class CheckpointUploadMode(Enum):
    """When, and how, ``report()`` brings a checkpoint into the run directory."""

    SYNC = "sync"
    """Copied (reflinked where the filesystem can) and committed before ``report()`` returns."""
    ASYNC = "async"
    """Copied and committed in the background."""
    NO_UPLOAD = "no_upload"
    """Committed before ``report()`` returns without a second copy: it is on the filesystem of the
    run already, and its files get a second name there."""


@dataclass(frozen=True, kw_only=True)
class ReportedCheckpoint:
    """A complete checkpoint of this run, with rank 0's metrics of its report."""

    checkpoint: Checkpoint
    metrics: Mapping[str, Any]
