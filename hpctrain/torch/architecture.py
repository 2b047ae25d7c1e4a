"""The module of a torch checkpoint without its weights, which are in a file of their own.

The file is a line of JSON and a pickle. Where the pickle would have a weight it has its name, so no
weight is stored twice. Opening it runs code: see `hpctrain.pickle_trust`.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain import pickle_trust
from hpctrain.constants import ARCHITECTURE_NAME
from hpctrain.errors import ConfigError
from hpctrain.own_files import write_own
from hpctrain.plan import spec
from hpctrain.printable import show_controls
from hpctrain.writers import read_judged

if TYPE_CHECKING:
    import torch

_FORMAT = 1
_MOST_SHOWN = 200


class NoArchitectureError(Exception):
    """Why there is no module to be had of a checkpoint, as the end of a sentence."""


def write_architecture(
    model: torch.nn.Module, weights: Mapping[str, torch.Tensor], directory: Path
) -> None:
    """Write a module without its weights into a directory. Not collective.

    Of a module that cannot be pickled the file says so, and why.

    Parameters
    ----------
    model
        The module.
    weights
        Its ``state_dict()``, which is stored beside it.
    directory
        Exists.
    """
    header: dict[str, Any] = {"format": _FORMAT, **_versions()}
    content = b""
    try:
        content = _pack(model, weights)
    except ConfigError as error:
        # Without its text: ranks write the same file, and it may have addresses.
        header["missing"] = f"{type(model).__name__} cannot be pickled ({_kind(error.__cause__)})"
    except NoArchitectureError as error:
        header["missing"] = str(error)
    whole = json.dumps(header).encode() + b"\n" + content
    if content:
        pickle_trust.remember(whole)
    write_own(directory / ARCHITECTURE_NAME, whole)


def read_architecture(
    directory: Path, weights: Mapping[str, torch.Tensor], *, trusted: bool
) -> torch.nn.Module:
    """Return the module that was written into a directory, with its weights. Not collective.

    Parameters
    ----------
    directory
        With `ARCHITECTURE_NAME`.
    weights
        What is stored beside it.
    trusted
        Whether the pickle may be opened though another user can have written it.

    Raises
    ------
    NoArchitectureError
        If it may not be opened, was not pickled, or cannot be unpickled here.
    """
    import torch

    path = directory / ARCHITECTURE_NAME
    try:
        whole, foreign = read_judged(path)
        line, _, content = whole.partition(b"\n")
        header = dict(json.loads(line))
        # Somebody else may have written them.
        written = {name: show_controls(str(header[name]))[:_MOST_SHOWN] for name in _versions()}
    except FileNotFoundError:
        raise NoArchitectureError("a checkpoint holds weights and no code") from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise NoArchitectureError(f"its {path.name} is damaged ({_kind(error)})") from error
    if header.get("format") != _FORMAT:
        raise NoArchitectureError(f"its {path.name} is of another version of hpctrain")
    if "missing" in header:
        raise NoArchitectureError(show_controls(str(header["missing"]))[:_MOST_SHOWN])
    if written != _versions():
        raise NoArchitectureError(
            f"its {path.name} was written with {_join(written)}, and this is {_join(_versions())}"
        )
    if not (trusted or foreign is None or pickle_trust.is_made_here(whole)):
        raise NoArchitectureError(
            f"its {path.name} holds a pickle; opening it runs code. "
            f"{pickle_trust.advice(directory, foreign).rstrip('.')}"
        )
    try:
        model = spec.unpack(content, referred=_Weights(weights))
    except Exception as error:  # whatever its code does
        text = f"{_kind(error)}: {error}".rstrip(".")
        raise NoArchitectureError(f"its {path.name} cannot be opened here ({text})") from error
    if not isinstance(model, torch.nn.Module):
        raise NoArchitectureError(f"its {path.name} holds a {_kind(model)}, and no module")
    return model


class _Weights:
    """Weights by what stands for them in the pickle, each of them one object."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._weights = weights
        self._made: dict[str, torch.Tensor] = {}

    def __call__(self, reference: Any) -> torch.Tensor:
        import torch

        name, is_parameter, requires_grad, attributes = reference
        if name not in self._made:
            # In memory of its own: what was read may be that of the file.
            weight = self._weights[name].clone()
            if is_parameter:
                weight = torch.nn.Parameter(weight, requires_grad=requires_grad)
            vars(weight).update(attributes)
            self._made[name] = weight
        return self._made[name]


def _pack(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> bytes:
    import torch

    names = _names_of_parts(model, weights)
    storages = {weight.untyped_storage().data_ptr() for weight in weights.values()}

    def reference(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        if (name := names.get(id(value))) is not None:
            is_parameter = isinstance(value, torch.nn.Parameter)
            return name, is_parameter, value.requires_grad, dict(vars(value))
        if value.untyped_storage().data_ptr() in storages and value.numel():
            # It would bring along the whole memory of the weight.
            raise NoArchitectureError("the module keeps views of its weights")
        return None

    try:
        return spec.pack(model, what="the model", canonical=True, reference=reference)
    except ConfigError as error:
        if isinstance(error.__cause__, NoArchitectureError):
            raise error.__cause__ from None
        raise


def _names_of_parts(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[int, str]:
    """Return the name in the file of each parameter and buffer that is there, by its identity."""
    import torch

    names: dict[int, str] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for name, part in itertools.chain(parameters.items(), buffers.items()):
        weight = weights.get(name)
        if weight is None or not _is_same(part, weight):
            # Of a buffer that is not persistent there is no weight; it is pickled.
            if name in parameters:
                raise NoArchitectureError(f"{name} of the module is not among its weights")
        elif type(part) not in (torch.Tensor, torch.nn.Parameter):
            raise NoArchitectureError(f"{name} of the module is more than a tensor")
        else:
            names.setdefault(id(part), name)
    return names


def _is_same(part: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        part.shape == weight.shape
        and part.dtype == weight.dtype
        and part.stride() == weight.stride()
        and part.data_ptr() == weight.data_ptr()
    )


def _versions() -> dict[str, str]:
    import torch

    return {
        "torch": ".".join(torch.__version__.split(".")[:2]),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def _join(versions: Mapping[str, str]) -> str:
    return f"torch {versions['torch']} and Python {versions['python']}"


def _kind(value: object) -> str:
    return type(value).__name__
