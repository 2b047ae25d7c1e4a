"""Identity of a prediction: tells later whether existing parts belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Digests of everything that the predictions depend on."""

    whole: str
    """Digest of everything, including the other two."""
    inputs: str
    """Digest of the files that rows are read from."""
    model: str
    """Digest of the files of the checkpoint."""
    about: str
    """Description for messages."""

    def to_plan(self) -> dict[str, str]:
        """Return the form that is written beside the parts. Not collective."""
        plan = asdict(self)
        return {"identity": plan.pop("whole"), **plan}

    def is_that_of(self, plan: Mapping[str, Any]) -> bool:
        """Return whether a plan belongs to this prediction. Not collective."""
        return bool(plan["identity"] == self.whole)

    def differences(self, plan: Mapping[str, Any]) -> str:
        """Return what differs, for messages. Not collective."""
        if plan.get("inputs", self.inputs) != self.inputs:
            return f"the input differs, or has changed since ({plan['about']})"
        if plan.get("model", self.model) != self.model:
            return f"the checkpoint differs, or its files have changed since ({plan['about']})"
        return f"the predictor, columns or arguments differ ({plan['about']})"
