"""`Tuner`: many trials of a function or a trainer, each with a configuration of its own."""

from __future__ import annotations

import math
import random
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from hpctrain import environ
from hpctrain.checks import given_or_default
from hpctrain.config import ExistingPolicy, RunConfig
from hpctrain.errors import ConfigError, HpctrainError, RunStoppedError, SupersededError
from hpctrain.launch.begin import rename_aside
from hpctrain.launch.code_record import keep_code, record_code
from hpctrain.launch.existing import policy_of
from hpctrain.launch.storage import errors_of_storage
from hpctrain.log import log
from hpctrain.rundir.files import remove_unfinished, write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.trust import check_run_directory
from hpctrain.tune.allocation_runner import AllocationRunner
from hpctrain.tune.first_trials import check_first_trials, make_source, print_first_plan
from hpctrain.tune.job_end import JobEnd
from hpctrain.tune.job_slots import JobSlots, most_jobs
from hpctrain.tune.jobs_runner import JobsRunner
from hpctrain.tune.ledger import (
    SweepLedger,
    SweepPaths,
    SweepRecord,
    has_sweep,
    put_configs,
    read_record,
)
from hpctrain.tune.local_runner import LocalRunner
from hpctrain.tune.node_slots import NodeSlots
from hpctrain.tune.person_stops import PersonStops
from hpctrain.tune.place import (
    begin_anew,
    errors_of_files,
    find_launcher,
    find_original,
    find_slots,
    held,
    is_begun,
)
from hpctrain.tune.result_grid import ResultGrid, make_grid
from hpctrain.tune.schedulers.scheduler import FIFOScheduler
from hpctrain.tune.search.parameters import is_same
from hpctrain.tune.shared_arguments import share_arguments
from hpctrain.tune.slots import Slots
from hpctrain.tune.stored_tuner import StoredTuner
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.sweep_rules import SweepRules, name_metrics
from hpctrain.tune.trainable import (
    Trainable,
    check_trainable,
    make_trial_trainer,
    name_trainable,
    run_config_of,
)
from hpctrain.tune.trial import TrialState
from hpctrain.tune.tune_config import TuneConfig
from hpctrain.tune.variants import check_space
from hpctrain.uncaught import show_as

_OWNER_ONLY = 0o600
_RUNNERS: Mapping[str, type[LocalRunner]] = {
    "local": LocalRunner,
    "allocation": AllocationRunner,
    "slurm": JobsRunner,
}


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
        If a value is none.
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
        self._retries: tuple[TrialState, ...] = ()
        self._restarts_errored = False
        self._restored: SweepPaths | None = None

    def fit(self) -> ResultGrid:
        """Run the trials, and return their results. Not collective.

        Trials that fail are results, too.

        Raises
        ------
        ConfigError
            If something is impossible, or the first report of a trial lacks the metric.
        RunStoppedError
            If the job of this process is about to end, once the trials have stopped;
            ``Tuner.restore()`` goes on in another one. Also if a person has stopped the sweep:
            ``hpctrain tune stop``.
        KeyboardInterrupt
            After Ctrl-C, once the trials have stopped, unless they are jobs, which go on;
            ``Tuner.restore()`` goes on.
        """
        config = self._tune_config
        launcher = find_launcher(self._run_config, config)
        # A second fit() of this Tuner begins with what the first one began with.
        stored = StoredTuner(space=self._space, tune_config=config, run_config=self._run_config)
        content = stored.to_bytes()
        config = StoredTuner.from_bytes(content).tune_config
        policy = policy_of(self._run_config)
        restored = self._is_to_go_on()
        paths = self._restored or self._new_paths(policy)
        seed = config.seed if config.seed is not None else random.SystemRandom().randrange(2**31)
        record = None
        if restored:
            record = read_record(paths)
            seed = record.started.get("seed", seed)
        scheduler = config.scheduler or FIFOScheduler()
        scheduler.set_search_properties(config.metric, config.mode)
        scheduler.check_sweep(self._space, config.search_alg)
        sharing = share_arguments(self._trainable)
        runner = _RUNNERS[launcher](
            lambda trial_id, values: make_trial_trainer(
                sharing.trainable, values, self._run_config_of(paths, trial_id, launcher)
            ),
            paths.run,
        )
        source = make_source(config, self._space, seed)
        make_slots: Callable[[], Slots | NodeSlots | JobSlots]
        if isinstance(runner, JobsRunner):
            make_slots = partial(
                runner.make_slots, most_jobs(config.max_jobs, config.max_concurrent_trials)
            )
        else:
            make_slots = find_slots(launcher, config.max_concurrent_trials)
        first = check_first_trials(source, runner, make_slots)
        # It was checked, and is a number then.
        assert not isinstance(config.time_budget_s, timedelta)
        rules = SweepRules(
            metrics=name_metrics(config, scheduler),
            time_budget_s=float(config.time_budget_s or math.inf),
            fail_fast=self._run_config.failure_config.fail_fast,
            ends_at_interrupt=launcher != "slurm",
        )
        check_run_directory(paths.root)
        if environ.dry_run_requested():
            print_first_plan(source, runner, first, count=config.num_samples)
        job_end, person = JobEnd(), PersonStops(paths)
        how_to_go_on = f"Tuner.restore({str(paths.root)!r}, trainable).fit() goes on"
        seen = record.trials.values() if record is not None else ()
        with (
            closing(runner),
            held(paths, meanwhile=lambda: runner.glance(seen)) as life,
            job_end.watched(),
            errors_of_files(paths, how_to_go_on),
        ):
            remove_unfinished(paths.tuner)
            # Another tuner may have been at work since they were looked at.
            if restored:
                record = read_record(paths)
            elif is_begun(paths):
                self._refuse_existing(paths, policy)
                begin_anew(paths)
            sweep = Sweep(
                source=source,
                scheduler=scheduler,
                search=config.search_alg,
                runner=runner,
                slots=make_slots(),
                ledger=SweepLedger(paths=paths),
                rules=rules,
                show=self._show,
                why_leave=lambda: job_end.why() or person.why(),
                find_stopped=person.trials,
                is_urgent=lambda: person.is_now,
                check_hold=life.check,
            )
            with errors_of_storage(RunPaths(paths.root)):
                sharing.write(paths.root)
            if record is not None:
                keep_code(
                    RunPaths(paths.root), [RunPaths(paths.run(name)) for name in record.trials]
                )
            record_code(RunPaths(paths.root), keeps=self._run_config.snapshot)
            with _explaining_interrupts(sweep, runner, how_to_go_on):
                if record is None:
                    self._begin(paths, content, seed, launcher)
                else:
                    self._go_on(paths, record, sweep, person)
                self._run(sweep, person, how_to_go_on)
            SweepLedger(paths=paths).append("sweep-ended", reason=sweep.reason)
            self._show_end(sweep, paths)
        return make_grid(paths, sweep.trials, metric=config.metric, mode=config.mode)

    def _run(self, sweep: Sweep, person: PersonStops, how_to_go_on: str) -> None:
        try:
            sweep.run()
        except SupersededError:
            raise
        except RunStoppedError as error:
            where = "" if person.why() else "In another job "
            raise RunStoppedError(f"{error} {where}{how_to_go_on}.") from error
        except ConfigError as error:
            raise ConfigError(
                f"{error} The trials were stopped. Begin again under another name, or with "
                f"RunConfig(existing='restart')."
            ) from error
        except (HpctrainError, OSError):
            raise
        except Exception:
            # Of a scheduler, a search algorithm or a stop criterion of the user's.
            log(f"the sweep stopped because of an error; {how_to_go_on}")
            raise

    def _show_end(self, sweep: Sweep, paths: SweepPaths) -> None:
        failed = sum(t.state is TrialState.ERROR for t in sweep.trials.values())
        silent = sum(
            t.state is TrialState.TERMINATED and not t.reports for t in sweep.trials.values()
        )
        self._show(
            f"{len(sweep.trials)} trials, {failed} failed"
            + (f", {silent} without a report" if silent else "")
            + (f" ({sweep.reason})" if sweep.reason else "")
            + f": hpctrain tune status {shlex.quote(str(paths.root))}"
        )

    def get_results(self) -> ResultGrid:
        """Return the results of a restored sweep as they are, and run nothing. Not collective.

        Raises
        ------
        ConfigError
            If it was not restored.
        """
        if self._restored is None:
            raise ConfigError(
                "get_results() is for Tuner.restore(path, trainable). fit() returns the results of "
                "a new sweep."
            )
        record = read_record(self._restored)
        put_configs(self._restored, record)
        config = self._tune_config
        return make_grid(self._restored, record.trials, metric=config.metric, mode=config.mode)

    @classmethod
    def can_restore(cls, path: str | PathLike[str]) -> bool:
        """Return whether there is a sweep. Not collective."""
        paths = SweepPaths(root=Path(path))
        return paths.tuner.is_file() and has_sweep(paths)

    @classmethod
    def restore(
        cls,
        path: str | PathLike[str],
        trainable: Trainable,
        *,
        resume_errored: bool = False,
        restart_errored: bool = False,
        resume_unfinished: bool = True,
        param_space: Mapping[str, Any] | None = None,
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
        resume_errored
            Whether trials that failed resume from their newest checkpoint.
        restart_errored
            Whether they begin anew.
        resume_unfinished
            Ray Tune's argument: they always are.
        param_space
            Ray Tune's argument: not needed, since the search space is stored. It has to be as it
            was.

        Raises
        ------
        ConfigError
            If there is no sweep, others could have written its pickle, the search space is
            another one, or trials are not to be resumed.
        """
        paths = SweepPaths(root=Path(path).absolute())
        record = read_record(paths)
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
        stored = StoredTuner.read(paths)
        if param_space is not None and not is_same(dict(param_space), dict(stored.space)):
            raise ConfigError(
                f"restore(param_space=...): it is not the search space of {paths.root}, whose "
                f"trials go on with what was chosen from theirs. Leave it out; or begin another "
                f"sweep with it."
            )
        tuner = cls(
            trainable,
            param_space=stored.space,
            tune_config=stored.tune_config,
            run_config=stored.run_config,
        )
        search = stored.tune_config.search_alg
        if record.trials and search is not None and not hasattr(search, "restore_trial"):
            raise ConfigError(
                f"{type(search).__name__} has no restore_trial(trial_id, config), so a sweep with "
                f"it cannot be restored. Add the method, and begin another sweep."
            )
        tuner._restored = paths
        tuner._retries = (TrialState.ERROR,) if resume_errored or restart_errored else ()
        tuner._restarts_errored = restart_errored
        return tuner

    def _is_to_go_on(self) -> bool:
        """Return whether to go on with a sweep: the variable wins over what a script restores."""
        if self._restored is None:
            return False
        job_id = environ.variable("SLURM_JOB_ID")
        if environ.restart_count() and read_record(self._restored).job_id == job_id:
            # Slurm has started this job again, and its script goes on as it began.
            return True
        if environ.requested_existing() == "error":
            raise ConfigError(
                f"{self._restored.root} is a sweep already, and HPCTRAIN_EXISTING=error accepts "
                f"none. Unset it to go on with the sweep."
            )
        return environ.requested_existing() != "restart"

    def _new_paths(self, policy: ExistingPolicy) -> SweepPaths:
        name = self._run_config.name
        if name is None:
            stamp = time.strftime("%Y%m%d-%H%M%S")
            name = f"{name_trainable(self._trainable)}_{stamp}_{secrets.token_hex(2)}"
        storage = Path(self._run_config.storage_path).absolute()
        paths = SweepPaths(root=storage / name)
        if RunPaths(paths.root).plan.exists():
            raise ConfigError(
                f"{paths.root} is a run, and not a sweep. Choose another RunConfig(name=...)."
            )
        if is_begun(paths):
            self._refuse_existing(paths, policy)
        return paths

    @staticmethod
    def _refuse_existing(paths: SweepPaths, policy: ExistingPolicy) -> None:
        if policy != "restart":
            raise ConfigError(
                f"{paths.root} is a sweep already. Go on with it: "
                f"Tuner.restore({str(paths.root)!r}, trainable).fit()   Or choose another "
                f"RunConfig(name=...), or existing='restart', which moves it aside."
            )

    def _run_config_of(
        self, paths: SweepPaths, trial_id: str, launcher: Literal["local", "allocation", "slurm"]
    ) -> RunConfig:
        return replace(
            self._run_config,
            name=trial_id,
            storage_path=str(paths.root),
            verbose=0,
            logging_config=None,
            launcher=launcher,
            # What is in the way is of this sweep.
            existing="auto",
        )

    def _begin(self, paths: SweepPaths, content: bytes, seed: int, launcher: str) -> None:
        config = self._tune_config
        write_atomic(paths.tuner, content, mode=_OWNER_ONLY, durable=True)
        SweepLedger(paths=paths).append(
            "sweep-started",
            format=1,
            path=str(paths.root),
            job_id=environ.variable("SLURM_JOB_ID"),
            trainable=name_trainable(self._trainable),
            metric=config.metric,
            mode=config.mode,
            num_samples=config.num_samples,
            seed=seed,
            launcher=launcher,
        )
        self._show(f"sweep {paths.root.name}: {paths.root}")

    def _go_on(
        self, paths: SweepPaths, record: SweepRecord, sweep: Sweep, person: PersonStops
    ) -> None:
        put_configs(paths, record)
        if (request := person.withdraw()) is not None:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(request.time))
            log(f"sweep {paths.root.name} was stopped by hpctrain tune stop at {when}, and goes on")
        if (original := find_original(paths, record)) is not None:
            log(f"sweep {paths.root.name} is a copy of {original}, and goes on as one of its own")
        SweepLedger(paths=paths).append(
            "sweep-restored", path=str(paths.root), job_id=environ.variable("SLURM_JOB_ID")
        )
        ended = sum(trial.state.is_final for trial in record.trials.values())
        self._show(
            f"sweep {paths.root.name} goes on: {ended} of {len(record.trials)} trials have ended"
        )
        sweep.adopt(record.trials)
        for trial in list(sweep.trials.values()):
            if trial.state in self._retries:
                if self._restarts_errored and paths.run(trial.trial_id).exists():
                    rename_aside(paths.run(trial.trial_id))
                person.forget(trial.trial_id)
                sweep.retry(trial, anew=self._restarts_errored)

    def _show(self, line: str) -> None:
        if self._run_config.verbose:
            log(line, to=sys.stdout)


@contextmanager
def _explaining_interrupts(sweep: Sweep, runner: LocalRunner, how_to_go_on: str) -> Iterator[None]:
    """Log at Ctrl-C what is left at work, and how the sweep goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        left = runner.describe_left(sweep.at_work)
        log(f"interrupted; {how_to_go_on}{left}", new_line=True)
        show_as(error, "")
        raise
