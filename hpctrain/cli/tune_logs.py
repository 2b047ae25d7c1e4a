"""``hpctrain tune logs``: the output of the ranks of a trial."""

from __future__ import annotations

from hpctrain.cli.logs import (
    AttemptOption,
    FollowOption,
    JobLogOption,
    LauncherLogOption,
    RankOption,
    TailOption,
    print_logs,
)
from hpctrain.cli.tune_sweep import SweepArgument, TrialArgument, find_trial


def logs(
    sweep: SweepArgument,
    trial: TrialArgument,
    rank: RankOption = 0,
    follow: FollowOption = False,
    tail: TailOption = None,
    attempt: AttemptOption = None,
    launcher_log: LauncherLogOption = False,
    job_log: JobLogOption = False,
) -> None:
    """Print the output of a rank of a trial: the same as ``hpctrain logs SWEEP/TRIAL``."""
    from hpctrain.errors import ConfigError
    from hpctrain.rundir.status import read_status

    run, _ = find_trial(sweep, trial)
    if read_status(run) is None:
        raise ConfigError(f"{trial} has not begun, so it has no output yet: {run.root} is no run.")
    print_logs(
        run,
        rank=rank,
        follow=follow,
        tail=tail,
        attempt=attempt,
        launcher_log=launcher_log,
        job_log=job_log,
    )
