"""What a prediction is of: whoever finds its parts knows by it whether they are the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What the predictions depend on, as digests."""

    whole: str
    """All of it, the other two among it."""
    inputs: str
    """The files that rows are read from."""
    model: str
    """The files of the checkpoint."""
    about: str
    """The same for people."""

    def to_plan(self) -> dict[str, str]:
        """Return what is written beside the parts. Not collective."""
        plan = asdict(self)
        return {"identity": plan.pop("whole"), **plan}

    def is_that_of(self, plan: Mapping[str, Any]) -> bool:
        """Return whether parts are those of this prediction. Not collective."""
        return bool(plan["identity"] == self.whole)

    def differences(self, plan: Mapping[str, Any]) -> str:
        """Return what is not the same, for people. Not collective."""
        if plan.get("inputs", self.inputs) != self.inputs:
            return f"the input is another one, or has changed since ({plan['about']})"
        if plan.get("model", self.model) != self.model:
            return f"the files of the checkpoint are others, or have changed ({plan['about']})"
        return f"it has another predictor, other columns or arguments ({plan['about']})"
