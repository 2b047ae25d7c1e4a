"""`SavedTrees`: the pytrees of a checkpoint, with tensors that it is read into."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hpctrain.bulk.index import StateIndex
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.state_dict.dtypes import live_kind, stored_kind
from hpctrain.torch.state.state_dict.json_values import decode
from hpctrain.torch.state.state_dict.pytree import (
    ARRAY,
    SHARDED,
    as_tensor,
    is_sharded,
    is_tensor,
    tensors_of,
    unflatten,
)

if TYPE_CHECKING:
    import torch


class SavedTrees:
    """The trees of a checkpoint, with tensors for it to be read into.

    Parameters
    ----------
    index
        Of the checkpoint. It need not have files.
    dtypes
        As of `StateIndex.dtypes`, of all files.
    """

    def __init__(self, index: StateIndex, dtypes: Iterable[tuple[str, str]]) -> None:
        self.index = index
        self._dtypes = dict(dtypes)
        self._used: dict[int, Any] = {}
        self._made: dict[str, Any] = {}

    def knows(self, name: str) -> bool:
        """Return whether the checkpoint has the treedef of a tree. Not collective."""
        index = self.index
        if name in index.trees or name in index.shapes or name in index.aliases:
            return True
        # Other programs' values have names of their own below that of a tree with tensors.
        return name in index.values and not index.plain_names

    def treedef(self, name: str) -> Any:
        """Return the treedef of a tree in the checkpoint. Not collective."""
        return decode(self.index.trees.get(name))

    def values(self, name: str, treedef: Any) -> Any:
        """Return a tree with None for tensors. Not collective."""
        values = self.index.values
        return unflatten(name, treedef, lambda key, *_: decode(values.get(key)))

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        """Record a tensor that is read into by this name alone. Not collective."""
        import torch

        if tensor.layout is torch.strided:
            self._is_free(self.index.aliases.get(name, name), tensor)

    def tree(
        self,
        name: str,
        treedef: Any,
        live: Any,
        make: Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor] | None = None,
    ) -> Any:
        """Return a tree with None for values. Not collective.

        Parameters
        ----------
        name
            Of the tree.
        treedef
            Of the tree.
        live
            Its tensors are taken where they have the shape and type of the checkpoint's.
        make
            Makes another one from its name, shape and type, by default on the CPU.

        Raises
        ------
        CheckpointError
            If it is unknown how another one is sharded.
        """
        # Without such tensors this may be a process for itself, which has all of each.
        shapes = set() if make else set(map(_shape, filter(is_sharded, tensors_of(live))))
        knows_shards = _has_shards(treedef)

        def leaf(name: str, kind: Any, live: Any) -> Any:
            saved = self.index.aliases.get(name, name)
            if saved not in self.index.shapes:
                return None
            is_fit = is_tensor(live) and self._is_fit(saved, live)
            if is_fit and self._is_free(saved, live):
                # Another name of it is to have the same tensor, if it has none.
                self._made.setdefault(saved, live)
                return live
            if saved not in self._made:
                dtype, shape = live_kind(saved, self._dtypes[saved], self.index)
                if is_fit:
                    made = _like(live)
                elif shapes and (kind == SHARDED if knows_shards else shape in shapes):
                    raise CheckpointError(
                        f"{name} of shape {list(shape)} is not there yet, and beside DTensors only "
                        f"optimizers show how theirs are sharded. Make it first, an optimizer's by "
                        f"a step, or give model= and optimizer= themselves."
                    )
                else:
                    made = (make or make_whole)(name, shape, dtype)
                    made = made.numpy() if kind == ARRAY else made
                self._made[saved] = made
            return self._made[saved]

        return unflatten(name, treedef, leaf, live=live)

    def _is_fit(self, saved: str, live: Any) -> bool:
        """Return whether a leaf can be read into."""
        import torch

        # Thousands are looked at in every load, so none is detached.
        tensor = live if isinstance(live, torch.Tensor) else as_tensor(live, saved)
        if tensor.layout is not torch.strided or tensor.is_meta:
            return False
        if self.index.types is None:
            # Older versions wrote the bits of some types, and not which.
            return stored_kind(tensor) == (self._dtypes[saved], self.index.shapes[saved])
        kind = live_kind(saved, self._dtypes[saved], self.index)
        return (tensor.dtype, tuple(tensor.shape)) == kind

    def _is_free(self, saved: str, live: Any) -> bool:
        """Return whether nothing else is read into the same memory.

        Two leaves that are one tensor now need not have been one.
        """
        tensor = live if hasattr(live, "data_ptr") else as_tensor(live, saved)
        local = getattr(tensor, "_local_tensor", tensor)
        # Empty ones have no memory.
        if not local.data_ptr():
            return True
        use = (saved, local.shape, local.stride())
        return bool(self._used.setdefault(local.data_ptr(), use) == use)


def with_saved_treedef(
    name: str,
    live: Any,
    saved: SavedTrees | None,
    make: Callable[..., torch.Tensor] | None = None,
) -> Any:
    """Return a tree with the treedef that it has in a checkpoint, if that is known.

    Not collective.

    Parameters
    ----------
    name
        Of the tree.
    live
        The tree as it is.
    saved
        Of the checkpoint, if one is loaded.
    make
        As for `SavedTrees.tree`.
    """
    if saved is None or not saved.knows(name):
        return live
    return saved.tree(name, saved.treedef(name), live, make)


def make_whole(_: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an empty tensor on the CPU, for `SavedTrees.tree`. Not collective."""
    import torch

    return torch.empty(shape, dtype=dtype)


def _like(live: Any) -> Any:
    import torch

    if isinstance(live, torch.Tensor):
        return torch.empty_like(live, requires_grad=False)
    return live.copy()


def _has_shards(treedef: Any) -> bool:
    if isinstance(treedef, dict | list | tuple):
        return any(map(_has_shards, treedef.values() if isinstance(treedef, dict) else treedef))
    return bool(treedef == SHARDED)


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)
