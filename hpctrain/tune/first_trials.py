"""What is known of the trials of a sweep before it begins."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from hpctrain.errors import ConfigError
from hpctrain.launch.dry_run import print_plan
from hpctrain.log import log
from hpctrain.tune.ledger import SweepPaths, SweepRecord
from hpctrain.tune.local_runner import LocalRunner
from hpctrain.tune.slots import Slots, TrialSlots
from hpctrain.tune.source import ConfigSource, SearchSource, VariantSource
from hpctrain.tune.trial import Trial, name_trial
from hpctrain.tune.tune_config import TuneConfig
from hpctrain.tune.variants import Variants

_MOST_CHECKED = 1000


def make_source(config: TuneConfig, space: Mapping[str, Any], seed: int) -> ConfigSource:
    """Return where the configurations of a sweep come from. Not collective.

    Raises
    ------
    ConfigError
        If the search algorithm cannot choose from the space.
    """
    search = config.search_alg
    if search is None:
        return VariantSource(
            variants=Variants(space=space, seed=seed, num_samples=config.num_samples)
        )
    if hasattr(search, "set_search_properties"):
        search.set_search_properties(config.metric, config.mode, space)
    return SearchSource(search=search, space=space, num_samples=config.num_samples)


def check_first_trials(
    source: ConfigSource,
    runner: LocalRunner,
    make_slots: Callable[[], TrialSlots],
    *,
    record: SweepRecord | None,
    paths: SweepPaths,
) -> Trial | None:
    """Refuse before the start what can be known then; return the first trial, if it is.

    Not collective.

    Parameters
    ----------
    record
        What the ledger says of a sweep that goes on: trials that have ended need no room, others
        have their configurations by now. None of a new one: a search algorithm proposes the first
        trial now.
    paths
        Of the sweep. Trials that a person has stopped need no room.

    Raises
    ------
    ConfigError
        If a trial is impossible.
    """
    first, most = None, 0
    made = {} if record is None else record.trials
    for trial in _known(source, record, paths):
        try:
            need = runner.need_of(trial)
            slot = make_slots().take(trial.trial_id, need)
        except ConfigError as error:
            if trial.trial_id not in made:
                raise
            raise ConfigError(
                f"{error} Or let the sweep go on without it: hpctrain tune stop "
                f"{shlex.quote(str(paths.root))} {trial.trial_id}"
            ) from error
        most = max(most, need.cpus)
        if first is None and slot is not None:
            first = trial
            first.slot = slot
            runner.prepare(first)
    slots = make_slots()
    if isinstance(slots, Slots) and most > slots.capacity.cpus:
        log(
            f"warning: a trial needs {most} CPUs, and this machine has {slots.capacity.cpus}: "
            f"such trials run alone, and their workers slow each other down."
        )
    return first


def _known(source: ConfigSource, record: SweepRecord | None, paths: SweepPaths) -> Iterator[Trial]:
    """Yield the trials that are known and have not ended."""
    made = {} if record is None else record.trials
    for trial_id, trial in made.items():
        if not trial.state.is_final and not paths.stop_mark(trial_id).exists():
            coming = trial.transfer
            yield Trial(trial_id=trial_id, config=trial.config if coming is None else coming.config)
    if isinstance(source, VariantSource):
        for number in range(min(source.variants.count, _MOST_CHECKED)):
            if (trial_id := name_trial(number)) not in made:
                yield Trial(trial_id=trial_id, config=source.draw(number, trial_id))
    elif isinstance(source, SearchSource) and record is None:
        config = source.draw(name_trial(0))
        if config is not None:
            yield Trial(trial_id=name_trial(0), config=config)


def print_first_plan(
    source: ConfigSource, runner: LocalRunner, first: Trial | None, *, count: int
) -> NoReturn:
    """Print how many trials there would be, and the plan of the first, and end the process.

    Not collective.

    Parameters
    ----------
    first
        As `check_first_trials` returns it.
    count
        Of the trials that a search algorithm proposes.
    """
    if isinstance(source, VariantSource) and first is not None:
        log(f"{source.variants.count} trials, the first of which is this:", to=sys.stdout)
        print_plan(runner.prepare(first))
    else:
        log(f"{count} trials, which the search algorithm proposes", to=sys.stdout)
    raise SystemExit(0)
