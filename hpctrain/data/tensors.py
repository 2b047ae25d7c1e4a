"""Batches as tensors of torch and of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import function
from hpctrain.data.batch import Batch
from hpctrain.data.optional import require
from hpctrain.data.schema import Schema
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow
    import torch


def to_torch(
    batch: Batch,
    *,
    dtypes: torch.dtype | Mapping[str, torch.dtype] | None,
    device: str | torch.device,
) -> dict[str, torch.Tensor]:
    """Return a batch as tensors on a device.

    Not collective. On the CPU they share the memory of the batch if it is writable.

    Raises
    ------
    ConfigError
        If torch is not installed, or a column has no numbers.
    """
    torch = require("torch", to="for batches of tensors", extra="torch")
    tensors = {}
    for name, array in batch.items():
        if array.dtype.kind not in "biufc":
            raise ConfigError(
                f"column {name!r} of type {array.dtype} cannot be a tensor. Encode it with "
                f"map_batches(), or leave it out with select_columns()."
            )
        # torch supports only the machine's byte order, and warns of read-only memory.
        own = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
        dtype = dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
        tensors[name] = torch.from_numpy(np.ascontiguousarray(own)).to(device=device, dtype=dtype)
    return tensors


def torch_maker(
    dtypes: Any, device: Any, collate_fn: Callable[[Batch], Any] | None
) -> Callable[[Batch], Any]:
    """Return what makes tensors of a batch, or whatever `collate_fn` does.

    Not collective.

    Raises
    ------
    ConfigError
        If one is no type of torch, no device or no function.
    """
    tensor_types(dtypes)
    if collate_fn is not None:
        function("collate_fn", collate_fn, example="a function of a dict of arrays")
    return collate_fn or partial(to_torch, dtypes=dtypes, device=known_device(device))


def tensor_types(dtypes: Any) -> None:
    """Check types of torch for tensors: one, or some by column. Not collective.

    Raises
    ------
    ConfigError
        If one is another value, such as NumPy's type of that name.
    """
    if dtypes is None:
        return
    torch = require("torch", to="for batches of tensors", extra="torch")
    for one in dtypes.values() if isinstance(dtypes, Mapping) else [dtypes]:
        if not isinstance(one, torch.dtype):
            raise ConfigError(
                f"dtypes={shown(dtypes)}: {shown(one)} is not a type of torch. Give one, such as "
                f"torch.float32, or a dict of them by column."
            )


def known_device(device: Any) -> Any:
    """Return a device of torch. Not collective.

    Raises
    ------
    ConfigError
        If torch knows no such device.
    """
    torch = require("torch", to="for batches of tensors", extra="torch")
    try:
        # torch takes None for its default device, and a number for that GPU.
        if device is not None and not isinstance(device, bool):
            return torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        pass
    raise ConfigError(
        f"device={shown(device)} is not a device of torch. Give one, such as 'cpu' or 'cuda:0', or "
        f"leave it out."
    )


def to_tensorflow_batch(
    batch: Batch, *, dtypes: tensorflow.DType | Mapping[str, tensorflow.DType] | None
) -> dict[str, Any]:
    """Return a batch as tensors of TensorFlow.

    Not collective.

    Raises
    ------
    ConfigError
        If TensorFlow has no tensor for the values of a column.
    """
    tensorflow = require("tensorflow", to="for batches of tensors", extra="tensorflow")
    tensors = {}
    for name, array in batch.items():
        dtype = dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
        try:
            tensor = tensorflow.convert_to_tensor(array)
            tensors[name] = tensor if dtype is None else tensorflow.cast(tensor, dtype)
        except (TypeError, ValueError, tensorflow.errors.UnimplementedError) as error:
            raise ConfigError(
                f"column {name!r} of type {array.dtype} cannot be a tensor: {error}. Encode it "
                f"with map_batches(), or leave it out with select_columns()."
            ) from error
    return tensors


def to_tensorflow(
    batches: Iterable[Batch],
    schema: Schema,
    feature_columns: str | Sequence[str],
    label_columns: str | Sequence[str],
    *,
    num_batches: int | None,
) -> Any:
    """Return a ``tf.data.Dataset`` of pairs of features and labels.

    Not collective.

    Parameters
    ----------
    batches
        Each pass over them is an epoch.
    schema
        Schema of the batches.
    feature_columns, label_columns
        One name gives a tensor, a list of names a dict of tensors.
    num_batches
        Number of batches of each epoch; None if the next epoch has fewer than the others.

    Raises
    ------
    ConfigError
        If TensorFlow is not installed, or there is no such column.
    """
    tensorflow = require("tensorflow", to="for to_tf()", extra="tensorflow")
    wanted = (feature_columns, label_columns)
    for names in wanted:
        schema.select([names] if isinstance(names, str) else names)

    def signature(name: str) -> Any:
        column = schema[name]
        return tensorflow.TensorSpec(shape=(None, *column.shape), dtype=column.dtype)

    def pairs() -> Iterator[Any]:
        # Give each batch one step late: TensorFlow reads ahead in its own threads, and the epoch
        # must have ended before its last batch is used.
        ready = None
        for batch in batches:
            if ready is not None:
                yield ready
            ready = tuple(_pick(names, batch.__getitem__) for names in wanted)
        if ready is not None:
            yield ready

    dataset = tensorflow.data.Dataset.from_generator(
        pairs, output_signature=tuple(_pick(names, signature) for names in wanted)
    )
    if num_batches is None:
        return dataset
    return dataset.apply(tensorflow.data.experimental.assert_cardinality(num_batches))


def _pick(names: str | Sequence[str], of: Callable[[str], Any]) -> Any:
    return of(names) if isinstance(names, str) else {name: of(name) for name in names}
