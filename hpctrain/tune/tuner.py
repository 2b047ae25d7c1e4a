"""`Tuner`: many trials of a function or a trainer, each with a configuration of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from os import PathLike
from stat import S_ISREG
from typing import Any

from hpctrain.checks import given_or_default, shown
from hpctrain.config import RunConfig
from hpctrain.errors import ConfigError
from hpctrain.launch.begin import rename_aside
from hpctrain.launch.code_record import keep_code, record_code
from hpctrain.launch.storage import errors_of_storage
from hpctrain.log import log
from hpctrain.path_string import expand_home
from hpctrain.ray_names import INSTEAD_OF_FIELDS
from hpctrain.rundir.files import remove_unfinished
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.trust import check_run_directory
from hpctrain.tune.existing_sweep import (
    errors_of_closed,
    has_job_ended,
    refuse_existing,
    refuse_live,
    refuse_stopped,
)
from hpctrain.tune.interruptions import Interruptions
from hpctrain.tune.job_end import JobEnd
from hpctrain.tune.ledger import (
    SweepLedger,
    SweepPaths,
    SweepRecord,
    has_sweep,
    put_configs,
    read_record,
)
from hpctrain.tune.metric import find_comparison
from hpctrain.tune.person_stops import PersonStops
from hpctrain.tune.place import begin_anew, errors_of_files, held, is_begun
from hpctrain.tune.result_grid import ResultGrid, make_grid
from hpctrain.tune.search.parameters import is_same
from hpctrain.tune.shared_arguments import Sharing
from hpctrain.tune.stored_tuner import StoredTuner
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.sweep_errors import errors_of_sweep, interrupts_of_sweep
from hpctrain.tune.sweep_lines import describe_sweep
from hpctrain.tune.sweep_plan import SweepPlan, plan_sweep
from hpctrain.tune.sweep_start import begin_sweep, restore_sweep
from hpctrain.tune.trainable import (
    Trainable,
    check_trainable,
    name_trainable,
    run_config_of,
    warn_of_lost_settings,
)
from hpctrain.tune.trial import TrialState
from hpctrain.tune.tune_config import TuneConfig
from hpctrain.tune.tuner_life import seconds_of_last
from hpctrain.tune.variants import check_space


class Tuner:
    """Tries a function or a trainer with many configurations, some at the same time.

    Each trial is a run of its own, below the directory of the sweep: ``storage_path/name/TRIAL``.

    Parameters
    ----------
    trainable
        A function that is called with the configuration and calls ``hpctrain.report()``, or a
        trainer.
    param_space
        The configuration, with domains in place of values: `hpctrain.tune.uniform`,
        `hpctrain.tune.grid_search`, ... Of a trainer its keys are arguments, such as
        ``train_loop_config`` and ``scaling_config``.
    tune_config
        How the sweep searches, and when it ends.
    run_config
        Name and place of the sweep, and how each trial is looked after. None: the trainer's.

    Raises
    ------
    ConfigError
        If an argument is not valid.
    """

    def __init__(
        self,
        trainable: Trainable,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        check_trainable(trainable)
        check_space({} if param_space is None else param_space)
        self._trainable = trainable
        self._space: Mapping[str, Any] = dict(param_space or {})
        self._tune_config = given_or_default("tune_config", tune_config, TuneConfig)
        self._run_config = given_or_default(
            "run_config", run_config or run_config_of(trainable), RunConfig
        )
        warn_of_lost_settings(trainable, self._run_config)
        self._retries: tuple[TrialState, ...] = ()
        self._restarts_errored = False
        self._restored: SweepPaths | None = None
        self._begun: SweepPaths | None = None

    def fit(self) -> ResultGrid:
        """Run the trials, and return their results. Not collective.

        Trials that fail are results, too.

        Raises
        ------
        ConfigError
            If something is impossible, or a trial lacks the metric that none has reported so far.
        RunStoppedError
            If the job of this process is about to end, once the trials have stopped;
            ``Tuner.restore()`` goes on in another one. Also if a person has stopped the sweep
            (``hpctrain tune stop``), and if it is Slurm that starts the job of such a one again.
        KeyboardInterrupt
            After Ctrl-C, once the trials have stopped, unless they are jobs, which go on;
            ``Tuner.restore()`` goes on.
        """
        plan = plan_sweep(
            self._trainable,
            self._space,
            self._tune_config,
            self._run_config,
            restored=self._restored,
        )
        paths, config = plan.paths, plan.config
        job_end, person = JobEnd(), PersonStops(paths)
        how_to_go_on = f"Tuner.restore({str(paths.root)!r}, trainable).fit() goes on"
        seen = plan.record.trials.values() if plan.record is not None else ()
        # Of the last tuner, as long as this one has shown none.
        lived_s = seconds_of_last(paths)
        with (
            closing(plan.runner) as runner,
            held(paths, meanwhile=lambda: runner.glance(seen)) as life,
            job_end.watched(),
            errors_of_files(paths, how_to_go_on),
        ):
            record = _look_again(plan)
            spent_s = 0.0 if record is None else record.earlier_s + max(record.last_s, lived_s)
            interruptions = Interruptions(
                why_job_ends=job_end.why,
                why_leave=person.why,
                find_stopped=person.trials,
                is_urgent=lambda: person.is_now,
                stop_times=job_end.stop_times,
                check_hold=life.check,
            )
            sweep = self._make_sweep(plan, interruptions, spent_s=spent_s)
            self._write_code(paths, record, plan.sharing)
            with interrupts_of_sweep(sweep, runner, how_to_go_on):
                if record is None:
                    self._begin(plan)
                    life.count_anew()
                else:
                    if self._retries and spent_s >= plan.rules.time_budget_s:
                        log("time_budget_s is over: trials that failed are not run again")
                        self._retries = ()
                    restore_sweep(paths, record, person, spent_s=spent_s)
                    life.count_anew()
                    self._go_on(paths, record, sweep, person)
                with errors_of_sweep(paths, sweep, person, how_to_go_on):
                    sweep.run()
            SweepLedger(paths=paths).append("sweep-ended", reason=sweep.reason)
            self._show(describe_sweep(sweep.trials.values(), paths, reason=sweep.reason))
        metric, mode = find_comparison(config, plan.scheduler, config.search_alg)
        return make_grid(paths, sweep.trials, metric=metric, mode=mode)

    def get_results(self) -> ResultGrid:
        """Return the results of the sweep as they are, and run nothing. Not collective.

        Raises
        ------
        ConfigError
            If it has not begun: ``fit()`` was not called, and it was not restored.
        """
        paths = self._restored or self._begun
        if paths is None:
            raise ConfigError(
                "get_results(): the sweep has not begun. Call fit() first, or take "
                "Tuner.restore(path, trainable).get_results()."
            )
        record = read_record(paths)
        put_configs(paths, record)
        started = record.started
        return make_grid(
            paths, record.trials, metric=started.get("metric"), mode=started.get("mode")
        )

    @classmethod
    def can_restore(cls, path: str | PathLike[str], storage_filesystem: object = None) -> bool:
        """Return whether there is a sweep. Not collective.

        Parameters
        ----------
        path
            Directory of the sweep.
        storage_filesystem
            Ray Tune's argument: None.

        Raises
        ------
        ConfigError
            If there is a `storage_filesystem`, or another user has closed the directory.
        """
        _refuse_filesystem(storage_filesystem)
        paths = SweepPaths(root=expand_home(path))
        # Python's own is_file() is False of what this user may not read, as of 3.14.
        with errors_of_closed(paths), suppress(FileNotFoundError, NotADirectoryError):
            return S_ISREG(paths.tuner.stat().st_mode) and has_sweep(paths)
        return False

    @classmethod
    def restore(
        cls,
        path: str | PathLike[str],
        trainable: Trainable,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        storage_filesystem: object = None,
    ) -> Tuner:
        """Return a tuner whose ``fit()`` goes on with a sweep. Not collective.

        Trials that have ended are not run again. Others resume from their newest checkpoint, and
        those that still run are followed. Settings and search space are unpickled: open only what
        is your own.

        Parameters
        ----------
        path
            Directory of the sweep.
        trainable
            The function or trainer, as before.
        resume_unfinished
            Ray Tune's argument: they always are.
        resume_errored
            Whether trials that failed resume from their newest checkpoint.
        restart_errored
            Whether they begin anew.
        param_space
            Ray Tune's argument: not needed, since the search space is stored. It has to be as it
            was.
        storage_filesystem
            Ray Tune's argument: None, since `path` is a directory.

        Raises
        ------
        ConfigError
            If there is no sweep, another user has closed its directory, others could have written
            its pickle, the search space is another one, or trials are not to be resumed.
        """
        _refuse_filesystem(storage_filesystem)
        paths = SweepPaths(root=expand_home(path).absolute())
        with errors_of_closed(paths):
            read_record(paths)
        check_run_directory(paths.root)
        if resume_errored and restart_errored:
            raise ConfigError(
                "restore(resume_errored=True, restart_errored=True): a trial can do one of both."
            )
        if not resume_unfinished:
            raise ConfigError(
                "restore(resume_unfinished=False): trials that have not ended always go on. "
                "hpctrain tune stop SWEEP TRIAL ends one for good; get_results() runs none."
            )
        with errors_of_closed(paths):
            stored = StoredTuner.read(paths)
        if param_space is not None and not is_same(dict(param_space), dict(stored.space)):
            raise ConfigError(
                f"restore(param_space=...): it is not the search space of {paths.root}, whose "
                f"trials go on with what was chosen from theirs. Leave it out; or begin another "
                f"sweep with it."
            )
        tuner = cls(trainable, param_space=stored.space, tune_config=stored.tune_config)
        tuner._run_config = stored.run_config
        tuner._restored = paths
        tuner._retries = (TrialState.ERROR,) if resume_errored or restart_errored else ()
        tuner._restarts_errored = restart_errored
        return tuner

    def _make_sweep(
        self, plan: SweepPlan, interruptions: Interruptions, *, spent_s: float
    ) -> Sweep:
        return Sweep(
            source=plan.source,
            scheduler=plan.scheduler,
            search=plan.config.search_alg,
            runner=plan.runner,
            slots=plan.make_slots(),
            ledger=SweepLedger(paths=plan.paths),
            rules=replace(plan.rules, spent_s=spent_s),
            show=self._show,
            interruptions=interruptions,
        )

    def _write_code(self, paths: SweepPaths, record: SweepRecord | None, sharing: Sharing) -> None:
        """Write what all trials share, and keep the code that earlier ones ran."""
        root = RunPaths(paths.root)
        with errors_of_storage(root):
            sharing.write(paths.root)
        if record is not None:
            keep_code(root, [RunPaths(paths.run(name)) for name in record.trials])
        record_code(root, keeps=self._run_config.snapshot)

    def _begin(self, plan: SweepPlan) -> None:
        begin_sweep(
            plan.paths,
            plan.content,
            plan.config,
            name_trainable(self._trainable),
            scheduler=plan.scheduler,
            seed=plan.seed,
            launcher=plan.launcher,
        )
        self._begun = plan.paths
        self._show(f"sweep {plan.paths.root.name}: {plan.paths.root}")

    def _go_on(
        self,
        paths: SweepPaths,
        record: SweepRecord,
        sweep: Sweep,
        person: PersonStops,
    ) -> None:
        ended = sum(trial.state.is_final for trial in record.trials.values())
        self._show(
            f"sweep {paths.root.name} goes on: {ended} of {len(record.trials)} trials have ended"
        )
        sweep.adopt(record.trials, was_in_job=has_job_ended(record))
        for trial in list(sweep.trials.values()):
            if trial.state in self._retries:
                if self._restarts_errored and paths.run(trial.trial_id).exists():
                    rename_aside(paths.run(trial.trial_id))
                person.forget(trial.trial_id)
                sweep.retry(trial, anew=self._restarts_errored)

    def _show(self, line: str) -> None:
        if self._run_config.verbose:
            log(line, to=sys.stdout)


def _look_again(plan: SweepPlan) -> SweepRecord | None:
    """Return the sweep that goes on, as it is now that this process holds it; None begins one."""
    paths = plan.paths
    remove_unfinished(paths.tuner)
    # Another tuner may have been at work since they were looked at.
    if plan.record is not None:
        record = read_record(paths)
        refuse_stopped(paths, record)
        return record
    if is_begun(paths):
        refuse_existing(paths, plan.policy)
        refuse_live(paths)
        begin_anew(paths)
    return None


def _refuse_filesystem(given: object) -> None:
    if given is not None:
        raise ConfigError(
            f"storage_filesystem={shown(given)}: "
            f"{INSTEAD_OF_FIELDS['RunConfig']['storage_filesystem']}"
        )
