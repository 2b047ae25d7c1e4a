"""Automatic mixed precision by the names of Ray Train: `accelerate` and what follows from it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.optim import Optimizer

from hpctrain.errors import ConfigError
from hpctrain.torch.device import get_device
from hpctrain.worker.context import active_worker
from hpctrain.worker.report import Session

# By run: of the training function that runs in this process.
_scalers: weakref.WeakKeyDictionary[Session, StepScaler | None] = weakref.WeakKeyDictionary()


class StepScaler(torch.amp.GradScaler):
    """A scaler that is updated once for the steps of several optimizers.

    Gradients of all of them have one scale, so it stays until a loss is scaled again.
    """

    def __init__(self, device: str, **options: Any) -> None:
        super().__init__(device, **options)
        self._stepped: set[int] = set()
        """Optimizers that have made a step since the last update."""

    def scale(self, outputs: Any) -> Any:
        """Scale a loss, or several. Not collective."""
        self._catch_up()
        return super().scale(outputs)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Let an optimizer make a step, unless a gradient overflowed. Not collective."""
        if id(optimizer) in self._stepped:
            self._catch_up()
        self._stepped.add(id(optimizer))
        return super().step(optimizer, *args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of after the last steps. Not collective."""
        self._catch_up()
        return super().state_dict()

    def _catch_up(self) -> None:
        if self._stepped:
            self._stepped.clear()
            self.update()


def accelerate(amp: bool = False) -> None:
    """Choose mixed precision for the models that `prepare_model` is given from now on.

    Not collective, but every rank must choose the same. It is for GPUs: on a CPU it changes
    nothing.

    Parameters
    ----------
    amp
        Whether models compute in mixed precision (``torch.autocast``).

    Raises
    ------
    ConfigError
        If it was called before in this training function.
    """
    session = active_worker("accelerate()").session
    if session in _scalers:
        raise ConfigError(
            "accelerate() was called before in this training function. Call it once, before "
            "prepare_model()."
        )
    is_mixed = amp and get_device().type == "cuda"
    _scalers[session] = StepScaler("cuda") if is_mixed else None


def prepare_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return an optimizer that undoes the scaling of gradients in its steps.

    Not collective. Without mixed precision it is the optimizer that was given.
    """
    scaler = _scaler("prepare_optimizer()")
    return optimizer if scaler is None else ScaledOptimizer(optimizer, scaler)


def backward(tensor: torch.Tensor) -> None:
    """Compute the gradients of a loss, scaled where mixed precision needs it.

    Collective if the model is prepared for more than one rank.
    """
    scaler = _scaler("backward()")
    loss: Any = tensor if scaler is None else scaler.scale(tensor)
    loss.backward()


def autocast(model: torch.nn.Module) -> None:
    """Let a model compute in mixed precision, if `accelerate` chose it. Not collective."""
    if _scaler("prepare_model()") is not None:
        precision = _Precision()
        model.register_forward_pre_hook(precision.enter)
        model.register_forward_hook(precision.leave, always_call=True)


class ScaledOptimizer(Optimizer):
    """An optimizer whose gradients are scaled: all but its steps is the wrapped one's.

    Parameters
    ----------
    optimizer
        What makes the steps.
    scaler
        What scales the loss.
    """

    def __init__(self, optimizer: Optimizer, scaler: StepScaler) -> None:
        # Not Optimizer's own: groups, state and hooks are shared with the wrapped one.
        self.__dict__ = dict(optimizer.__dict__)
        self._optimizer, self._scaler = optimizer, scaler

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Make a step, unless a gradient overflowed. Not collective."""
        self._scaler.step(self._optimizer, closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients. Not collective."""
        self._optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer. Not collective."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the wrapped optimizer. Not collective."""
        self._optimizer.load_state_dict(state_dict)
        self.state, self.param_groups = self._optimizer.state, self._optimizer.param_groups


class _Precision:
    """Hooks of a module, and no wrapper of its ``forward``, which could not be pickled."""

    def __init__(self) -> None:
        self._entered: list[ExitStack] = []

    def enter(self, module: torch.nn.Module, inputs: Any) -> None:
        """Begin to compute in mixed precision. Not collective."""
        stack = ExitStack()
        stack.enter_context(torch.autocast("cuda"))
        self._entered.append(stack)

    def leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        """Compute as before. Not collective."""
        if self._entered:
            self._entered.pop().close()


def _scaler(caller: str) -> StepScaler | None:
    return _scalers.get(active_worker(caller).session)
