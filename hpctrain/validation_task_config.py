"""`ValidationTaskConfig`: how one checkpoint is validated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpctrain.checks import show_changes, shown
from hpctrain.errors import ConfigError
from hpctrain.rules import checked, mapping, optional, or_default, seconds, with_value


def _json_values(what: str, value: Any) -> Any:
    value = mapping(" of arguments")(what, value)
    if "checkpoint" in value:
        raise ConfigError(
            f"{what} has the key 'checkpoint', which is the first argument of every validation "
            f"function. Rename the other argument."
        )
    try:
        # As the executor stores it: a resumed run calls with the same values.
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{with_value(what, value)}: {error}. These arguments are stored as JSON: give "
            f"numbers, strings, lists and dicts, and create or load the rest in the function."
        ) from error


@checked(fn_kwargs=or_default(_json_values), timeout_s=optional(seconds))
@dataclass(frozen=True, kw_only=True)
class ValidationTaskConfig:
    """How one checkpoint is validated."""

    fn_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the validation function, by name; JSON values."""
    timeout_s: float | None = None
    """Seconds after which the validation is ended; None sets no limit. The time that a job is
    pending does not count."""

    __repr__ = show_changes


# Its public home, which pickles and digests name.
ValidationTaskConfig.__module__ = "hpctrain.validation_config"


def merge_task(default: ValidationTaskConfig, given: object) -> ValidationTaskConfig:
    """Return how a checkpoint is validated, from ``report(..., validation=given)``.

    Not collective.

    Parameters
    ----------
    default
        The trainer's configuration.
    given
        True, or changes to the default.

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
            f"Pass the function to the trainer: validation_config=ValidationConfig(fn=...)."
        )
    return replace(
        default,
        fn_kwargs={**default.fn_kwargs, **given.fn_kwargs},
        timeout_s=default.timeout_s if given.timeout_s is None else given.timeout_s,
    )
