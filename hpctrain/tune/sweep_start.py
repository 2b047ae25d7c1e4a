"""What is written when a sweep begins, or goes on."""

from __future__ import annotations

import time

from hpctrain import environ
from hpctrain.log import log
from hpctrain.rundir.files import write_atomic
from hpctrain.tune.ledger import SweepLedger, SweepPaths, SweepRecord, put_configs
from hpctrain.tune.metric import find_comparison
from hpctrain.tune.person_stops import PersonStops
from hpctrain.tune.place import find_original
from hpctrain.tune.tune_config import TuneConfig

_OWNER_ONLY = 0o600


def begin_sweep(
    paths: SweepPaths,
    content: bytes,
    config: TuneConfig,
    trainable: str,
    *,
    scheduler: object,
    seed: int,
    launcher: str,
) -> None:
    """Write the settings of a sweep, and that it begins. Not collective.

    Parameters
    ----------
    content
        Of ``tuner.pkl``.
    config
        How the sweep searches.
    trainable
        Name of the function or trainer.
    scheduler
        Its metric and mode are the sweep's where `config` has none, or else those of the search.
    seed
        From which the configurations follow.
    launcher
        How its trials start.
    """
    metric, mode = find_comparison(config, scheduler, config.search_alg)
    write_atomic(paths.tuner, content, mode=_OWNER_ONLY, durable=True)
    SweepLedger(paths=paths).append(
        "sweep-started",
        format=1,
        path=str(paths.root),
        job_id=environ.variable("SLURM_JOB_ID"),
        restarts=environ.restart_count(),
        trainable=trainable,
        metric=metric,
        mode=mode,
        num_samples=config.num_samples,
        seed=seed,
        launcher=launcher,
    )


def restore_sweep(
    paths: SweepPaths, record: SweepRecord, person: PersonStops, *, spent_s: float
) -> None:
    """Write that a sweep goes on, and withdraw the request that stopped it. Not collective.

    Parameters
    ----------
    record
        As the ledger has it. Its trials get their configurations.
    person
        What a person has stopped.
    spent_s
        Seconds for which it has run.
    """
    put_configs(paths, record)
    if (request := person.withdraw()) is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(request.time))
        log(f"sweep {paths.root.name} was stopped by hpctrain tune stop at {when}, and goes on")
    if (original := find_original(paths, record)) is not None:
        log(f"sweep {paths.root.name} is a copy of {original}, and goes on as one of its own")
    SweepLedger(paths=paths).append(
        "sweep-restored",
        path=str(paths.root),
        job_id=environ.variable("SLURM_JOB_ID"),
        restarts=environ.restart_count(),
        earlier_s=spent_s,
    )
