"""The arguments that name a sweep and a trial, and what they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.tune.ledger import SweepPaths, SweepRecord
    from hpctrain.tune.trial import Trial

SweepArgument = Annotated[
    Path, typer.Argument(metavar="SWEEP", help="Directory of the sweep: storage_path/name.")
]
TrialArgument = Annotated[str, typer.Argument(help="Name of the trial: trial_00003.")]


def read_sweep(sweep: Path) -> tuple[SweepPaths, SweepRecord]:
    """Return where the files of a sweep are, and what its ledger says. Not collective.

    Raises
    ------
    ConfigError
        If there is no sweep.
    """
    from hpctrain.tune.ledger import SweepPaths, read_record

    paths = SweepPaths(root=sweep.absolute())
    return paths, read_record(paths)


def find_trial(sweep: Path, trial: str) -> tuple[RunPaths, Trial]:
    """Return the run directory of a trial, and the trial. Not collective. It may not have begun.

    Raises
    ------
    ConfigError
        If there is no sweep, or no such trial.
    """
    import shlex

    from hpctrain.checks import did_you_mean
    from hpctrain.errors import ConfigError
    from hpctrain.rundir.paths import RunPaths

    paths, record = read_sweep(sweep)
    if trial not in record.trials:
        meant = did_you_mean(trial, record.trials) or (
            f"They are listed by: hpctrain tune status {shlex.quote(str(paths.root))}"
        )
        raise ConfigError(f"the sweep {paths.root} has no trial {trial!r}. {meant}")
    return RunPaths(paths.run(trial)), record.trials[trial]
