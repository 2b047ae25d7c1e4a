"""Trees of dicts, lists, tensors and values: their leaves, their forms, those of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpctrain.bulk.index import StateIndex
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch.state.boxes import live_kind, stored_kind
from hpctrain.torch.state.values import decode, encode

if TYPE_CHECKING:
    import torch

# Larger arrays of NumPy are written as tensors.
_SMALL_ARRAY_BYTES = 64 * 1024
# In a form, where such an array or a DTensor is; other leaves are None.
_ARRAY = "array"
_SHARDED = "sharded"


def leaves(name: str, tree: Any, *, keep: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """Yield the tensors and values of a tree, each with its name and whether it is a tensor.

    Not collective. Of what has no tensor in it, the whole tree is one value.

    Parameters
    ----------
    name
        Of the tree.
    tree
        Any.
    keep
        Whether each key of the tree has a name, also one below which there is no tensor.
    """
    if is_tensor(tree):
        yield name, as_tensor(tree, name), True
    elif _is_open(tree, keep=keep):
        for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(f"{name}.{key}", item)
    else:
        yield name, tree, False


def form_of(tree: Any, *, keep: bool = False) -> Any:
    """Return the dicts, lists and tuples of a tree, without its leaves. Not collective.

    Parameters
    ----------
    tree
        Any.
    keep
        As for `leaves`.
    """
    if is_tensor(tree):
        if not hasattr(tree, "detach"):
            return _ARRAY
        return _SHARDED if _is_sharded(tree) else None
    if not _is_open(tree, keep=keep):
        return None
    if isinstance(tree, dict):
        return {key: form_of(item) for key, item in tree.items()}
    items = [form_of(item) for item in tree]
    return items if isinstance(tree, list) else tuple(items)


def keeps_names(form: Any) -> bool:
    """Return whether what is read from JSON in place of keys has the same names. Not collective.

    An enum of strings has another one.
    """
    if isinstance(form, dict):
        odd = (key for key in form if type(key) not in (str, int))
        return all(f"{decode(encode(key, name='key'))}" == f"{key}" for key in odd) and all(
            map(keeps_names, form.values())
        )
    return not isinstance(form, list | tuple) or all(map(keeps_names, form))


def filled(name: str, form: Any, leaf: Callable[[str, Any, Any], Any], *, live: Any = None) -> Any:
    """Return a tree of a form. Not collective.

    Parameters
    ----------
    name
        Of the tree.
    form
        What `form_of` gave.
    leaf
        Returns a leaf for its name, what the form has there, and what the live tree has there.
    live
        A tree of any form, which tells tuples with names.
    """
    if isinstance(form, dict):
        at = live if isinstance(live, dict) else {}
        return {
            key: filled(f"{name}.{key}", item, leaf, live=at.get(key)) for key, item in form.items()
        }
    if isinstance(form, list | tuple):
        known = live if isinstance(live, list | tuple) else ()
        at = dict(enumerate(known))
        items = [filled(f"{name}.{i}", item, leaf, live=at.get(i)) for i, item in enumerate(form)]
        return _sequence(items, form, live)
    return leaf(name, form, live)


def joined(tree: Any, live: Any) -> Any:
    """Return a tree and what a live one has besides. Not collective.

    Parameters
    ----------
    tree
        What `SavedTrees.tree` gave.
    live
        Its tensors stay where they are.
    """
    if isinstance(tree, dict) and isinstance(live, dict):
        here = {key: joined(tree[key], at) if key in tree else at for key, at in live.items()}
        return {**tree, **here}
    if isinstance(tree, list | tuple) and isinstance(live, list | tuple):
        both = [joined(item, at) for item, at in zip(tree, live, strict=False)]
        items = [*both, *tree[len(live) :], *live[len(tree) :]]
        return _sequence(items, tree, live)
    return live if is_tensor(live) or _holds_tensor(live) else tree


def is_tensor(leaf: Any) -> bool:
    """Return whether a leaf is written as a tensor. Not collective."""
    import torch

    if isinstance(leaf, torch.Tensor):
        return True
    import numpy as np

    if not isinstance(leaf, np.ndarray):
        return False
    large = leaf.nbytes > _SMALL_ARRAY_BYTES and leaf.flags.writeable
    return bool(large and leaf.dtype.kind in "biufc")


def as_tensor(leaf: Any, name: str) -> torch.Tensor:
    """Return a tensor with the memory of a leaf that is written as one. Not collective.

    Parameters
    ----------
    leaf
        Of which `is_tensor` is true.
    name
        Of the leaf, for errors.

    Raises
    ------
    ConfigError
        If it is an array that torch has no type for, or that is in another order.
    """
    import torch

    if isinstance(leaf, torch.Tensor):
        return leaf.detach()
    try:
        return torch.from_numpy(leaf)
    except (TypeError, ValueError) as error:
        # Torch has nothing wider.
        dtype = {"g": "float64", "G": "complex128"}.get(leaf.dtype.char, leaf.dtype.name)
        raise ConfigError(
            f"{name} is a NumPy array of type {leaf.dtype.str!r} and strides {leaf.strides}, which "
            f"cannot be a tensor: arrays of more than {_SMALL_ARRAY_BYTES} bytes are saved and "
            f"loaded as tensors. Give numpy.ascontiguousarray({name}, dtype={dtype!r}), and keep "
            f"that in its place."
        ) from error


class SavedTrees:
    """The trees of a checkpoint, with tensors for it to be read into.

    Parameters
    ----------
    index
        Of the checkpoint.
    """

    def __init__(self, index: StateIndex) -> None:
        self.index = index
        self._used: dict[int, Any] = {}
        self._made: dict[str, Any] = {}

    def knows(self, name: str) -> bool:
        """Return whether the checkpoint tells the form of a tree. Not collective."""
        index = self.index
        if name in index.trees or name in index.shapes or name in index.aliases:
            return True
        # Other programs' values have names of their own below that of a tree with tensors.
        return name in index.values and not index.plain_names

    def form(self, name: str) -> Any:
        """Return the form of a tree that is known. Not collective."""
        return decode(self.index.trees.get(name))

    def values(self, name: str, form: Any) -> Any:
        """Return a tree with None for tensors. Not collective."""
        values = self.index.values
        return filled(name, form, lambda key, *_: decode(values.get(key)))

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        """Take note of a tensor that is read into by its name, and by no other. Not collective."""
        import torch

        if tensor.layout is torch.strided:
            self._is_free(self.index.aliases.get(name, name), tensor)

    def tree(
        self,
        name: str,
        form: Any,
        live: Any,
        make: Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor] | None = None,
    ) -> Any:
        """Return a tree with None for values. Not collective.

        Parameters
        ----------
        name
            Of the tree.
        form
            Of the tree.
        live
            Its tensors are taken where they have the shape and type of the checkpoint's.
        make
            Makes another one from its name, shape and type, by default on the CPU.

        Raises
        ------
        CheckpointError
            If nobody can tell how another one is sharded.
        """
        # Without such tensors this may be a process for itself, which has all of each.
        shapes = set() if make else set(map(_shape, filter(_is_sharded, _tensors(live))))
        tells = _tells_of_shards(form)

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
                elif shapes and (kind == _SHARDED if tells else shape in shapes):
                    raise CheckpointError(
                        f"{name} of shape {list(shape)} is not there yet, and beside DTensors only "
                        f"optimizers tell how theirs are sharded. Make it first, an optimizer's by "
                        f"a step, or give model= and optimizer= themselves."
                    )
                else:
                    made = (make or make_whole)(name, shape, dtype)
                    made = made.numpy() if kind == _ARRAY else made
                self._made[saved] = made
            return self._made[saved]

        return filled(name, form, leaf, live=live)

    @cached_property
    def _dtypes(self) -> dict[str, str]:
        return {piece.name: piece.dtype for f in self.index.files for piece in f.layout.pieces}

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


def in_saved_form(
    name: str,
    live: Any,
    saved: SavedTrees | None,
    make: Callable[..., torch.Tensor] | None = None,
) -> Any:
    """Return a tree in the form that it has in a checkpoint, if that is known.

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
    return saved.tree(name, saved.form(name), live, make)


def make_whole(_: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an empty tensor on the CPU, for `SavedTrees.tree`. Not collective."""
    import torch

    return torch.empty(shape, dtype=dtype)


def _like(live: Any) -> Any:
    import torch

    if isinstance(live, torch.Tensor):
        return torch.empty_like(live, requires_grad=False)
    return live.copy()


def _tensors(tree: Any) -> Iterator[Any]:
    if is_tensor(tree):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(item)


def _tells_of_shards(form: Any) -> bool:
    if isinstance(form, dict | list | tuple):
        return any(map(_tells_of_shards, form.values() if isinstance(form, dict) else form))
    return bool(form == _SHARDED)


def _is_sharded(leaf: Any) -> bool:
    return hasattr(leaf, "placements") and hasattr(leaf, "to_local")


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _is_open(tree: Any, *, keep: bool) -> bool:
    return (keep and isinstance(tree, dict)) or _holds_tensor(tree)


def _holds_tensor(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(is_tensor(item) or _holds_tensor(item) for item in tree.values())
    if isinstance(tree, list | tuple):
        return any(is_tensor(item) or _holds_tensor(item) for item in tree)
    return False


def _sequence(items: list[Any], form: Any, live: Any) -> Any:
    if hasattr(live, "_fields") and len(live._fields) == len(items):
        named: Any = type(live)
        return named._make(items)
    return items if isinstance(form, list) else tuple(items)
