"""`SweepPlan`: what ``Tuner.fit()`` is to run, checked before anything is written."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from hpctrain import environ
from hpctrain.config import ExistingPolicy, RunConfig
from hpctrain.launch.existing import policy_of
from hpctrain.rundir.trust import check_run_directory
from hpctrain.tune.allocation_runner import AllocationRunner
from hpctrain.tune.existing_sweep import find_paths, is_to_go_on
from hpctrain.tune.first_trials import check_first_trials, make_source, print_first_plan
from hpctrain.tune.job_slots import most_jobs
from hpctrain.tune.jobs_runner import JobsRunner
from hpctrain.tune.ledger import SweepPaths, SweepRecord, put_configs, read_record
from hpctrain.tune.local_runner import LocalRunner
from hpctrain.tune.place import TrialLauncher, find_launcher, find_slots
from hpctrain.tune.schedulers.scheduler import FIFOScheduler, TrialScheduler
from hpctrain.tune.shared_arguments import Sharing, share_arguments
from hpctrain.tune.slots import TrialSlots
from hpctrain.tune.source import ConfigSource
from hpctrain.tune.stored_tuner import StoredTuner
from hpctrain.tune.sweep_rules import SweepRules, name_metrics
from hpctrain.tune.trainable import Trainable, make_trial_trainer
from hpctrain.tune.tune_config import TuneConfig

_RUNNERS: Mapping[TrialLauncher, type[LocalRunner]] = {
    "local": LocalRunner,
    "allocation": AllocationRunner,
    "slurm": JobsRunner,
}


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What ``Tuner.fit()`` is to run."""

    paths: SweepPaths
    policy: ExistingPolicy
    """What is done with another sweep that is there."""
    record: SweepRecord | None
    """The sweep that goes on; None begins one."""
    config: TuneConfig
    content: bytes
    """Of ``tuner.pkl``."""
    launcher: TrialLauncher
    seed: int
    source: ConfigSource
    scheduler: TrialScheduler
    sharing: Sharing
    runner: LocalRunner
    make_slots: Callable[[], TrialSlots]
    rules: SweepRules


def plan_sweep(
    trainable: Trainable,
    space: Mapping[str, Any],
    config: TuneConfig,
    run_config: RunConfig,
    *,
    restored: SweepPaths | None,
) -> SweepPlan:
    """Return what ``Tuner.fit()`` is to run. Not collective. Nothing is written.

    A dry run prints it, and ends the process.

    Parameters
    ----------
    trainable, space, config, run_config
        Of the `Tuner`.
    restored
        The sweep that it was restored from; None if it was not.

    Raises
    ------
    ConfigError
        If something is impossible, or a sweep is in the way.
    """
    launcher = find_launcher(run_config, config)
    # A second fit() of a Tuner begins with what the first one began with.
    content = StoredTuner(space=space, tune_config=config, run_config=run_config).to_bytes()
    config = StoredTuner.from_bytes(content).tune_config
    policy = policy_of(run_config)
    goes_on = restored is not None and is_to_go_on(restored)
    paths = restored or find_paths(run_config, trainable, policy)
    seed = config.seed if config.seed is not None else random.SystemRandom().randrange(2**31)
    record = None
    if goes_on:
        record = read_record(paths)
        put_configs(paths, record)
        seed = record.started.get("seed", seed)
    scheduler = config.scheduler or FIFOScheduler()
    assert isinstance(scheduler, TrialScheduler), "a name has become one"
    scheduler.set_search_properties(config.metric, config.mode)
    scheduler.check_sweep(space, config.search_alg)
    sharing = share_arguments(trainable)
    decides = type(scheduler) is not FIFOScheduler or _can_stop(config.search_alg)
    runner = _make_runner(sharing.trainable, paths, run_config, launcher, decides=decides)
    source = make_source(config, space, seed)
    make_slots = _slots_of(runner, config, launcher)
    first = check_first_trials(source, runner, make_slots, record=record, paths=paths)
    rules = _make_rules(config, run_config, scheduler, launcher)
    check_run_directory(paths.root)
    if environ.dry_run_requested():
        print_first_plan(source, runner, first, count=config.num_samples)
    return SweepPlan(
        paths=paths,
        policy=policy,
        record=record,
        config=config,
        content=content,
        launcher=launcher,
        seed=seed,
        source=source,
        scheduler=scheduler,
        sharing=sharing,
        runner=runner,
        make_slots=make_slots,
        rules=rules,
    )


def _make_runner(
    trainable: Trainable,
    paths: SweepPaths,
    run_config: RunConfig,
    launcher: TrialLauncher,
    *,
    decides: bool,
) -> LocalRunner:
    def run_config_of(trial_id: str) -> RunConfig:
        return replace(
            run_config,
            name=trial_id,
            storage_path=str(paths.root),
            verbose=0,
            logging_config=None,
            launcher=launcher,
            # What is in the way is of this sweep.
            existing="auto",
        )

    return _RUNNERS[launcher](
        lambda trial_id, values: make_trial_trainer(trainable, values, run_config_of(trial_id)),
        paths.run,
        decides=decides,
    )


def _can_stop(search: object) -> bool:
    """Return whether a search algorithm may end trials, as `Searcher` declares it."""
    return bool(getattr(search, "stops_trials", False))


def _slots_of(
    runner: LocalRunner, config: TuneConfig, launcher: TrialLauncher
) -> Callable[[], TrialSlots]:
    """Return what makes the slots of a sweep."""
    if isinstance(runner, JobsRunner):
        return partial(runner.make_slots, most_jobs(config.max_jobs, config.max_concurrent_trials))
    return find_slots(launcher, config.max_concurrent_trials)


def _make_rules(
    config: TuneConfig, run_config: RunConfig, scheduler: TrialScheduler, launcher: TrialLauncher
) -> SweepRules:
    # It was checked, and is a number then.
    assert not isinstance(config.time_budget_s, timedelta)
    return SweepRules(
        metrics=name_metrics(config, scheduler),
        time_budget_s=float(config.time_budget_s or math.inf),
        fail_fast=run_config.failure_config.fail_fast,
        ends_at_interrupt=launcher != "slurm",
    )
