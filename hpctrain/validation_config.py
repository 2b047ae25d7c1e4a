"""`ValidationConfig`: how checkpoints are validated beside the training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from hpctrain.checks import check_type, show_changes, shown
from hpctrain.errors import ConfigError
from hpctrain.rules import checked, kind, mapping, optional, or_default, seconds, with_value

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint


class ValidationFn(Protocol):
    """A function that validates a checkpoint."""

    # With both, type checkers take a function with any further arguments, or none.
    def __call__(self, checkpoint: Checkpoint, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        """Return the metrics of a checkpoint. Not collective."""


def _function(what: str, value: Any) -> Any:
    if not callable(value):
        raise ConfigError(
            f"{with_value(what, value)}: a function is needed that takes a checkpoint and returns "
            f"a dict of metrics."
        )
    return value


def _json_values(what: str, value: Any) -> Any:
    value = mapping(" of arguments")(what, value)
    if "checkpoint" in value:
        raise ConfigError(
            f"{what} has the key 'checkpoint', which is the first argument of every validation "
            f"function. Give the other one another name."
        )
    try:
        # As the executor stores it: a run that is resumed calls with the same values.
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{with_value(what, value)}: {error}. These arguments are stored as JSON: give "
            f"numbers, texts, lists and dicts, and make or load the rest in the function."
        ) from error


@checked(fn_kwargs=or_default(_json_values), timeout_s=optional(seconds))
@dataclass(frozen=True, kw_only=True)
class ValidationTaskConfig:
    """How one checkpoint is validated."""

    fn_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the validation function beside the checkpoint, by name; JSON values."""
    timeout_s: float | None = None
    """Seconds after which the validation is ended; None lets it take its time."""

    __repr__ = show_changes


@checked(
    fn=_function,
    task_config=or_default(kind(ValidationTaskConfig)),
    use_gpu=or_default(kind(bool)),
    wait_timeout_s=or_default(seconds),
)
@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """How checkpoints are validated that are reported with ``report(..., validation=...)``.

    The validation runs beside the training, in a process of its own on the node of the executor,
    one checkpoint at a time.
    """

    fn: ValidationFn
    """Called as ``fn(checkpoint, **fn_kwargs)``; returns a dict of metrics, which are added to
    those of the checkpoint, and replace metrics of the same name."""
    task_config: ValidationTaskConfig = field(default_factory=ValidationTaskConfig)
    """Of every validation, as far as ``report(..., validation=ValidationTaskConfig(...))`` does not
    say otherwise."""
    use_gpu: bool = False
    """Whether the function sees the GPUs of its node. The training has them, too."""
    wait_timeout_s: float = 3600.0
    """Seconds that ``fit()`` waits for pending validations once the training has ended. What is not
    validated by then keeps the metrics that it was reported with."""

    __repr__ = show_changes


def merge_task(default: ValidationTaskConfig, given: object) -> ValidationTaskConfig:
    """Return how a checkpoint is validated, from ``report(..., validation=given)``.

    Not collective.

    Parameters
    ----------
    default
        That of the trainer.
    given
        True, or what differs from the default.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if given is True:
        return default
    if not isinstance(given, ValidationTaskConfig):
        raise ConfigError(
            f"report(validation={shown(given)}): True, False or a ValidationTaskConfig is needed. "
            f"The function is given to the trainer: validation_config=ValidationConfig(fn=...)."
        )
    return replace(
        default,
        fn_kwargs={**default.fn_kwargs, **given.fn_kwargs},
        timeout_s=default.timeout_s if given.timeout_s is None else given.timeout_s,
    )


def check_validation_config(value: object) -> None:
    """Refuse what is no configuration of the validation, and is not None. Not collective."""
    if value is not None:
        check_type("validation_config", value, ValidationConfig)
