"""What follows a failed attempt. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.config import FailureConfig


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether to start the ranks again."""

    restart: bool
    reason: str
    """For the ledger and the error message."""


class FailurePolicy:
    """Counts failures against their budget.

    Parameters
    ----------
    config
        The budgets.
    """

    def __init__(self, config: FailureConfig) -> None:
        self._config = config
        self._worker_failures = 0

    def after_worker_failure(self) -> Decision:
        """Decide what follows the failure of a rank."""
        self._worker_failures += 1
        budget = self._config.max_failures
        if budget == -1:
            return Decision(
                restart=True, reason=f"failure {self._worker_failures}, without a limit"
            )
        return Decision(
            restart=self._worker_failures <= budget,
            reason=f"failure {self._worker_failures} of max_failures={budget}",
        )
