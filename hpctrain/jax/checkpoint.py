"""`JaxCheckpoint`: a pytree of arrays in a directory, in Orbax's format, without pickle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import CheckpointError, ConfigError, HpctrainError
from hpctrain.jax.process import import_jax
from hpctrain.loop_time import CHECKPOINT, waiting
from hpctrain.predict.features import describe_model
from hpctrain.worker import context

STATE_NAME = "state"


class JaxCheckpoint(Checkpoint):
    """A checkpoint with a pytree of arrays: parameters, and what else a training needs.

    It is a directory ``state`` in Orbax's format, which holds numbers and nothing that could run.
    """

    # Its methods read the directory at once.
    _may_be_made_later = False

    @classmethod
    def from_state(
        cls,
        state: Any,
        *,
        path: str | PathLike[str] | None = None,
        preprocessor: Any = None,
        features: Sequence[str] | None = None,
        label: str | None = None,
    ) -> JaxCheckpoint:
        """Save a pytree of arrays, and return a handle on this rank's part of it.

        Collective. In a training function every rank writes what it has of sharded arrays, into the
        directory of the next report's commit; every rank then gives its part to that report:
        ``hpctrain.report(metrics, JaxCheckpoint.from_state(state))``.

        Parameters
        ----------
        state
            Dicts, lists and tuples of JAX arrays, NumPy arrays and numbers. If it is a dict with
            ``params``, those are what a `JaxPredictor` scores with, otherwise all of it.
        path
            Directory, made if needed; with several ranks, one that all of them see. None is that
            of ``hpctrain.checkpoint_dir()``, or outside of a training function a temporary one
            that lives as long as the handle.
        preprocessor
            What batches go through before the model. What a trainer was given is there without it.
        features
            Names of the model's inputs, in order, if it takes a matrix with a column for each.
        label
            Column that the model predicts.

        Raises
        ------
        CheckpointError
            If a rank does not see the directory of rank 0.
        ConfigError
            If jax or orbax is missing.
        """
        if path is None and context.is_active():
            path = context.active_worker("from_state()").session.staging()
        checkpoint = cls._make(path)
        with waiting(CHECKPOINT):
            _save_shared(state, checkpoint.path)
        # On every rank: one that has no shard of its own still gives a part.
        return describe_model(
            checkpoint,
            framework="jax",
            preprocessor=preprocessor if import_jax().process_index() == 0 else None,
            features=features,
            label=label,
        )

    def get_state(self, like: Any = None) -> Any:
        """Return the pytree.

        Collective, where JAX has several processes. It does not matter how many there were when
        it was saved, nor how its arrays were sharded.

        Parameters
        ----------
        like
            A pytree of the same structure and shapes, of arrays or ``jax.ShapeDtypeStruct`` with a
            sharding: arrays come back with these types and shardings, each process reading its
            shards only. None: nested dicts and lists of whole NumPy arrays.

        Raises
        ------
        CheckpointError
            If there is no state, or it is not like `like`.
        """
        with _open_state(self) as (checkpointer, path):
            if like is None:
                return _restore_numpy(checkpointer, path, _saved_tree(checkpointer, path))
            ocp, like = _import_orbax(), _without_numpy_scalars(like)
            restore_args = ocp.checkpoint_utils.construct_restore_args(like)
            arguments = ocp.args.PyTreeRestore(item=like, restore_args=restore_args)
            try:
                return checkpointer.restore(path, args=arguments)
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"the state in {path} is not like the one that was given: {error} Give like= "
                    f"the structure and the shapes that were saved."
                ) from error


def read_params(checkpoint: Checkpoint) -> Any:
    """Return what is under ``params`` in a state, or all of it, as whole NumPy arrays.

    Collective, where JAX has several processes.

    Raises
    ------
    CheckpointError
        If there is no state.
    """
    with _open_state(checkpoint) as (checkpointer, path):
        saved = _saved_tree(checkpointer, path)
        if not (isinstance(saved, dict) and "params" in saved):
            return _restore_numpy(checkpointer, path, saved)
        # An optimizer's state can be twice as much.
        return _restore_numpy(checkpointer, path, {"params": saved["params"]})["params"]


@contextmanager
def _open_state(checkpoint: Checkpoint) -> Iterator[tuple[Any, Path]]:
    """Give what reads a checkpoint's state, and where that is."""
    with checkpoint.as_directory() as directory, _checkpointer() as checkpointer:
        path = Path(directory, STATE_NAME)
        if not path.is_dir():
            raise CheckpointError(
                f"{directory} has no {STATE_NAME}, the directory of a JAX state. Write it with "
                f"JaxCheckpoint.from_state()."
            )
        try:
            yield checkpointer, path
        except HpctrainError:
            raise
        except Exception as error:  # whatever a damaged directory brings about
            raise CheckpointError(
                f"the state in {path} cannot be read: {type(error).__name__}: {error!s:.300} Load "
                f"another checkpoint."
            ) from error


def _saved_tree(checkpointer: Any, path: Path) -> Any:
    return checkpointer.metadata(path).item_metadata.tree


def _restore_numpy(checkpointer: Any, path: Path, tree: Any) -> Any:
    import numpy as np

    ocp = _import_orbax()
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    restore_args = import_jax().tree.map(lambda _: as_numpy, tree)
    arguments = ocp.args.PyTreeRestore(item=tree, restore_args=restore_args, partial_restore=True)
    return checkpointer.restore(path, args=arguments)


def _save_shared(state: Any, directory: Path) -> None:
    """Let all ranks write into rank 0's directory, and then take what is theirs. Collective."""
    jax = import_jax()
    if not context.is_active() or jax.process_count() == 1:
        _save(state, directory)
        return
    comm = context.active_worker("from_state()").comm
    shared = Path(comm.bcast(str(directory)))
    blind = [rank for rank, sees in enumerate(comm.allgather(shared.is_dir())) if not sees]
    if blind:
        raise CheckpointError(
            f"rank {blind[0]} does not see {shared}, into which all ranks write. Leave out "
            f"SyncConfig(scratch_dir=...), whose directories belong to one node, or give a path on "
            f"the filesystem that all nodes share."
        )
    _save(state, shared)
    if shared != directory:
        _take_own_shards(shared / STATE_NAME, directory / STATE_NAME, jax.process_index())
    # Rank 0 may not look at what others are still taking away.
    comm.barrier()


def _save(state: Any, directory: Path) -> None:
    arguments = _import_orbax().args.PyTreeSave(_without_numpy_scalars(state))
    with _checkpointer() as checkpointer:
        checkpointer.save(directory / STATE_NAME, args=arguments)


def _take_own_shards(shared: Path, own: Path, process: int) -> None:
    """Move the files that this process wrote, so that it digests them itself. Not collective."""
    written = f"ocdbt.process_{process}"
    if (shared / written).is_dir():
        own.mkdir(exist_ok=True)
        (shared / written).rename(own / written)


def _without_numpy_scalars(tree: Any) -> Any:
    """Return a pytree in which these, which Orbax refuses, are arrays. Not collective."""
    import jax
    import numpy as np

    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, np.generic) else x, tree)


def _checkpointer() -> Any:
    ocp = _import_orbax()
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


def _import_orbax() -> Any:
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ConfigError(
            f"JaxCheckpoint needs Orbax: {error}. Install it where the workers run: pip install "
            f"'hpctrain[jax]'."
        ) from error
    return orbax.checkpoint
