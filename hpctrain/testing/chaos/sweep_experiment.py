"""`SweepExperiment`: a script with a sweep, undisturbed, and disturbed trials of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import hpctrain
from hpctrain.errors import ConfigError
from hpctrain.testing.chaos.experiment import Comparison
from hpctrain.testing.chaos.fault import Fault
from hpctrain.testing.chaos.outcome import differences, wrong_resumes
from hpctrain.testing.chaos.sweep_kinds import SWEEP_ACTS, count_attempts
from hpctrain.testing.chaos.sweep_outcome import best_trial, broken_rules, read_sweep
from hpctrain.testing.chaos.trial import Script, Trial, TrialResult
from hpctrain.testing.slurm import VirtualCluster

MOST_STARTS = 10
# What `hpctrain.uncaught` prints has frames of the script alone.
_OUR_FRAME = f'File "{Path(hpctrain.__file__).parent}/'


@dataclass(frozen=True, kw_only=True)
class SweepExperiment:
    """A script whose ``Tuner`` runs a sweep, or goes on with it. Made by `begin`."""

    folder: Path
    """Folder for the trials of the script, each in one of its own."""
    script: Script
    cluster: VirtualCluster | None
    """Where it is started, in an allocation; None is this machine."""
    num_trials: int
    is_repeatable: bool
    """Whether the trials of the sweep make the same reports, in whatever order they come."""
    metric: str
    """The best trial, which has the smallest last value, is always the same; empty: it need not
    be."""
    check: Callable[[Path], Sequence[str]]
    """Returns what else is wrong with a sweep, given the folder of the trial of the script."""
    timeout_s: float
    undisturbed: TrialResult
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def begin(
        cls,
        folder: Path,
        *,
        script: Script,
        num_trials: int,
        cluster: VirtualCluster | None = None,
        is_repeatable: bool = True,
        metric: str = "loss",
        check: Callable[[Path], Sequence[str]] = lambda folder: (),
        timeout_s: float = 180.0,
    ) -> SweepExperiment:
        """Run the script undisturbed.

        Not collective.

        Parameters
        ----------
        folder
            Folder for the trials of the script. It is made if needed.
        script
            What to run; `Script.sweep` names its sweep.
        num_trials
            How many trials the sweep has.
        cluster, is_repeatable, metric, check
            As of the class.
        timeout_s
            How long one trial of the script may take.

        Raises
        ------
        ConfigError
            If the sweep breaks a rule even so.
        """
        trial = Trial(folder / "undisturbed", script=script, cluster=cluster)
        result = trial.run(timeout_s=timeout_s, max_starts=1)
        experiment = cls(
            folder=folder,
            script=script,
            cluster=cluster,
            num_trials=num_trials,
            is_repeatable=is_repeatable,
            metric=metric,
            check=check,
            timeout_s=timeout_s,
            undisturbed=result,
        )
        if problems := experiment._judge(result, folder / "undisturbed"):
            raise ConfigError(
                f"the sweep of {script.path} is wrong even without faults: "
                f"{'; '.join(problems)}. See {result.log}."
            )
        return experiment

    def disturb(self, faults: Sequence[Fault], *, pause_s: float = 0.0) -> Comparison:
        """Run the script with faults, as often as it takes, and judge the sweep.

        Not collective.

        Parameters
        ----------
        faults
            What is to happen.
        pause_s
            Seconds between two starts.
        """
        folder = self.folder / f"trial-{next(self._numbers):04d}"
        trial = Trial(
            folder, script=self.script, cluster=self.cluster, faults=faults, acts=SWEEP_ACTS
        )
        result = trial.run(timeout_s=self.timeout_s, max_starts=MOST_STARTS, pause_s=pause_s)
        problems = self._judge(result, folder)
        if self.is_repeatable:
            problems += differences(self.undisturbed.outcome, result.outcome)
            came_about = [f for f, did in zip(faults, result.came_about, strict=True) if did]
            in_allocation = self.cluster is not None
            needed = sum(
                count_attempts(fault.kind, in_allocation=in_allocation) for fault in came_about
            )
            most = self.undisturbed.attempts + needed
            if result.attempts > most:
                problems.append(f"it took {result.attempts} attempts, where {most} are enough")
        if self.metric:
            now, before = (self._best(self.folder / name) for name in (folder.name, "undisturbed"))
            if now != before:
                problems.append(f"the best trial is {now}, not {before}")
        return Comparison(result=result, problems=tuple(problems))

    def _best(self, folder: Path) -> str | None:
        return best_trial(folder / "storage" / self.script.sweep, self.metric)

    def _judge(self, result: TrialResult, folder: Path) -> list[str]:
        root = folder / "storage" / self.script.sweep
        problems = [
            *result.troubles,
            *broken_rules(root, result.trace, num_trials=self.num_trials, damaged=result.damaged),
            *wrong_resumes(read_sweep(root), result.trace, result.damaged),
            *self.check(folder),
        ]
        if _OUR_FRAME in result.log.read_text(encoding="utf-8", errors="replace"):
            problems.append(f"a traceback of hpctrain was printed: {result.log}")
        return problems
