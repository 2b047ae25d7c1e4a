"""`CodeChanges`: says that trials of a restored sweep run other code than those before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpctrain.errors import DamagedFileError
from hpctrain.launch.digests import FUNCTION
from hpctrain.launch.request import Submission
from hpctrain.log import log
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.tune.trial import Trial, name_trial
from hpctrain.tune.trial_function import TrialFunction

# An argument of trainers: the function is part of the search space then.
_OF_THE_SPACE = "train_loop_per_worker"
# Arguments that no loop of a trainer holds.
_OUTSIDE_OF_LOOPS = frozenset(("train_loop_config", "trainer_init_config"))


class CodeChanges:
    """Compares the code of trials with that of the first one, or of their own earlier attempts.

    Parameters
    ----------
    run_of
        Returns the run directory of a trial.
    """

    def __init__(self, run_of: Callable[[str], Path]) -> None:
        self._run_of = run_of
        self._has_shown = False

    def show(self, trial: Trial, submission: Submission) -> None:
        """Print what has changed, once. Not collective."""
        if self._has_shown:
            return
        before = self._read(trial.trial_id) or self._read(name_trial(0))
        if changed := list(_changed(before, submission, trial.config)):
            self._has_shown = True
            log(
                f"warning: the code has changed since the sweep began: {', '.join(changed)}. "
                f"Trials that begin or resume from now on run it as it is now, and are compared "
                f"with those that ran it as it was. hpctrain diff --code RUN RUN2 shows the lines."
            )

    def _read(self, trial_id: str) -> Mapping[str, Any]:
        try:
            return read_plan(RunPaths(self._run_of(trial_id)))
        except (OSError, DamagedFileError):
            return {}


def _changed(
    before: Mapping[str, Any], submission: Submission, config: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is not as it was; what only one of both has may come from the configuration."""
    spec, loop = submission.spec, submission.request.worker_spec.train_loop
    digest = before.get("digests", {}).get(FUNCTION)
    if _is_code(loop, config) and digest not in (None, spec.digests[FUNCTION]):
        yield FUNCTION
    modules = before.get("modules", {})
    yield from (name for name, now in spec.modules.items() if modules.get(name, now) != now)


def _is_code(loop: object, config: Mapping[str, Any]) -> bool:
    """Return whether a loop is the same for all trials as long as its code is."""
    if isinstance(loop, TrialFunction):
        return True
    # A trainer's own loop holds arguments of the trainer: those of tree trainers, params.
    is_own = type(loop).__module__.partition(".")[0] == __package__.partition(".")[0]
    return _OF_THE_SPACE not in config and (not is_own or config.keys() <= _OUTSIDE_OF_LOOPS)
