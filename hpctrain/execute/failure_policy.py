"""What follows a failed attempt. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.config import FailureConfig

# Slurm's pmi2 plugin sometimes reads a part of a request and then refuses it, and all ranks abort
# in MPI_Init (seen with 22.05 and MPICH 5, right after another step on the same nodes).
_START_RETRIES = 2


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
        self._start_failures = 0

    def after_start_failure(self, *, transient: bool) -> Decision:
        """Decide what follows when the ranks could not be started."""
        self._start_failures += 1
        return Decision(
            restart=transient and self._start_failures <= _START_RETRIES,
            reason=f"start failure {self._start_failures}, tried again {_START_RETRIES} times",
        )

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
