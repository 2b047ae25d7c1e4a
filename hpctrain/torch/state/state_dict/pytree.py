"""Pytrees of dicts, lists, tensors and values: their leaves and their treedefs.

Those of torch (``torch.utils._pytree``) are private and open every container; here what has no
tensor in it is one leaf, so that a list of a million numbers is one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hpctrain.errors import ConfigError
from hpctrain.torch.state.state_dict.json_values import decode, encode

if TYPE_CHECKING:
    import torch

# Larger arrays of NumPy are written as tensors.
_SMALL_ARRAY_BYTES = 64 * 1024
# In a treedef, the place of such an array or of a DTensor; other leaves are None.
ARRAY = "array"
SHARDED = "sharded"


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


def treedef_of(tree: Any, *, keep: bool = False) -> Any:
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
            return ARRAY
        return SHARDED if is_sharded(tree) else None
    if not _is_open(tree, keep=keep):
        return None
    if isinstance(tree, dict):
        return {key: treedef_of(item) for key, item in tree.items()}
    items = [treedef_of(item) for item in tree]
    return items if isinstance(tree, list) else tuple(items)


def keys_survive_json(treedef: Any) -> bool:
    """Return whether what is read from JSON in place of keys has the same names. Not collective.

    An enum of strings has another one.
    """
    if isinstance(treedef, dict):
        odd = (key for key in treedef if type(key) not in (str, int))
        return all(f"{decode(encode(key, name='key'))}" == f"{key}" for key in odd) and all(
            map(keys_survive_json, treedef.values())
        )
    return not isinstance(treedef, list | tuple) or all(map(keys_survive_json, treedef))


def unflatten(
    name: str, treedef: Any, leaf: Callable[[str, Any, Any], Any], *, live: Any = None
) -> Any:
    """Return a tree with this treedef. Not collective.

    Parameters
    ----------
    name
        Of the tree.
    treedef
        What `treedef_of` gave.
    leaf
        Called with the name, what the treedef has there, and what the live tree has there.
    live
        Another tree, from which named tuples take their class.
    """
    if isinstance(treedef, dict):
        at = live if isinstance(live, dict) else {}
        return {
            key: unflatten(f"{name}.{key}", item, leaf, live=at.get(key))
            for key, item in treedef.items()
        }
    if isinstance(treedef, list | tuple):
        known = live if isinstance(live, list | tuple) else ()
        at = dict(enumerate(known))
        items = [
            unflatten(f"{name}.{i}", item, leaf, live=at.get(i)) for i, item in enumerate(treedef)
        ]
        return _sequence(items, treedef, live)
    return leaf(name, treedef, live)


def merge(tree: Any, live: Any) -> Any:
    """Return a tree and what a live one has besides. Not collective.

    Parameters
    ----------
    tree
        What `SavedTrees.tree` gave.
    live
        Its tensors stay where they are.
    """
    if isinstance(tree, dict) and isinstance(live, dict):
        here = {key: merge(tree[key], at) if key in tree else at for key, at in live.items()}
        return {**tree, **here}
    if isinstance(tree, list | tuple) and isinstance(live, list | tuple):
        both = [merge(item, at) for item, at in zip(tree, live, strict=False)]
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


def tensors_of(tree: Any) -> Iterator[Any]:
    """Yield the leaves that are tensors. Not collective."""
    if is_tensor(tree):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_of(item)


def is_sharded(leaf: Any) -> bool:
    """Return whether a leaf is a DTensor. Not collective."""
    return hasattr(leaf, "placements") and hasattr(leaf, "to_local")


def _is_open(tree: Any, *, keep: bool) -> bool:
    return (keep and isinstance(tree, dict)) or _holds_tensor(tree)


def _holds_tensor(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(is_tensor(item) or _holds_tensor(item) for item in tree.values())
    if isinstance(tree, list | tuple):
        return any(is_tensor(item) or _holds_tensor(item) for item in tree)
    return False


def _sequence(items: list[Any], treedef: Any, live: Any) -> Any:
    if hasattr(live, "_fields") and len(live._fields) == len(items):
        named: Any = type(live)
        return named._make(items)
    return items if isinstance(treedef, list) else tuple(items)
