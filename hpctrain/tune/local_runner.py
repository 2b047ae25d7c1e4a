"""`LocalRunner`: each trial is a run of its own on this machine, in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpctrain.base_trainer import BaseTrainer
from hpctrain.errors import ConfigError
from hpctrain.launch.background import RunSlot
from hpctrain.launch.cancel import end_processes, record_end, request_stop
from hpctrain.launch.executor_template import ExecutorTemplate
from hpctrain.launch.fit import prepare, submit_prepared
from hpctrain.launch.life import LifeTest, job_is_alive
from hpctrain.launch.request import Submission
from hpctrain.log import log
from hpctrain.plan.allocation import AllocatedNode
from hpctrain.plan.modules import ModuleFiles
from hpctrain.rundir.metrics import read_reports
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.rundir.store import CheckpointStore
from hpctrain.scaling_config import ScalingConfig
from hpctrain.tune.clones import Clones
from hpctrain.tune.code_changes import CodeChanges
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.person_stops import REASON
from hpctrain.tune.rank_templates import RankTemplates
from hpctrain.tune.runner import End, Look, Report, Saved
from hpctrain.tune.slots import Need, need_of
from hpctrain.tune.trial import Origin, Transfer, Trial
from hpctrain.tune.trial_executors import TrialExecutors
from hpctrain.tune.trial_progress import find_saved, make_report
from hpctrain.tune.watch import Watch, end_of

MakeTrainer = Callable[[str, Mapping[str, Any]], BaseTrainer]
"""Returns the trainer of a trial, by its name and configuration."""
RunOf = Callable[[str], Path]
"""Returns the run directory of a trial, by its name."""

_LOOK_INTERVAL_S = 0.5
_QUIET_S = 3.0
_LOOK_WITHOUT_NEWS_S = 0.1
_MOST_NAMED = 8


class LocalRunner:
    """Runs trials on this machine.

    Parameters
    ----------
    make_trainer
        Returns the trainer of a trial, by its name and configuration.
    run_of
        Returns the run directory of a trial.
    decides
        Whether a trial begins a report only after `let_go_on` with the last one.
    """

    launcher = "local"

    def __init__(self, make_trainer: MakeTrainer, run_of: RunOf, *, decides: bool = False) -> None:
        self._make_trainer, self._run_of = make_trainer, run_of
        self._watches: dict[str, Watch] = {}
        self._clones = Clones(run_of)
        self._files = ModuleFiles()
        self._changes = CodeChanges(run_of)
        self._template = ExecutorTemplate()
        self._rank_templates = RankTemplates()
        self._executors = TrialExecutors()
        self._decides = decides

    def close(self) -> None:
        """Start no more trials. Not collective. Those that were begun go on."""
        self._template.close()
        self._rank_templates.close()
        self._executors.close()

    def need_of(self, trial: Trial) -> Need:
        """Return what the workers of a trial need. Not collective."""
        return need_of(self._scaling_of(trial))

    def prepare(self, trial: Trial) -> Submission:
        """Return a trial that is ready to begin. Not collective. Nothing is written.

        Raises
        ------
        ConfigError
            If something is impossible.
        """
        trainer = self._make_trainer(trial.trial_id, trial.config)
        if trainer.scaling_config.num_workers == 0:
            raise ConfigError(
                "num_workers=0 runs in this interpreter, and a trial has a process of its own. Use "
                "num_workers=1."
            )
        trainer._check_before_run()
        return prepare(
            trainer._request().named(),
            self.launcher,
            in_background=self.launcher != "slurm",
            share=self._share_of(trial, trainer.scaling_config),
            # All trials run the same code, whatever is edited while the sweep goes on.
            files=self._files if trainer.run_config.snapshot else None,
            # As in Ray Tune, where the next report begins when the driver has seen the last one.
            stops_exactly=True,
            awaits_decisions=self._decides,
            job_name=self._job_name(trial),
            tuner_sign=self._tuner_sign(trial),
        )

    def start(self, trial: Trial) -> None:
        """Begin or resume the run of a trial, or find that it goes on. Not collective.

        Raises
        ------
        HpctrainError
            If it cannot begin.
        """
        submission = self.prepare(trial)
        self._changes.show(trial, submission)
        paths = submission.request.paths
        # The sweep itself left it before its job was queued again.
        with suppress(OSError):
            paths.stop_request.unlink(missing_ok=True)
        watch = self._watch(trial)
        again = replace(
            submission,
            continues=watch.is_orphaned,
            why_again=watch.explain_again(),
            keeps_code=False,
        )
        self._begin(trial, again)
        watch.begin()

    def watch(self, trials: Sequence[Trial]) -> None:
        """Look at runs until it is known of each whether it goes on. Not collective.

        Those of another host are watched at the same time.
        """
        begun, has_logged = time.monotonic(), False
        unknown = list(trials)
        while unknown := [trial for trial in unknown if self._is_unknown(trial)]:
            if not has_logged and time.monotonic() - begun >= _QUIET_S:
                has_logged = True
                log(
                    f"{len(unknown)} trials run on another host, or their executors have died: "
                    f"{', '.join(trial.trial_id for trial in unknown[:_MOST_NAMED])}. Waiting for "
                    f"them to write status.json, for twice the node_timeout_s of their "
                    f"FailureConfig at most."
                )
            time.sleep(_LOOK_INTERVAL_S)

    def glance(self, trials: Iterable[Trial]) -> None:
        """Look once at runs that seem to go on, for a later `watch` to know more.

        Not collective.
        """
        for trial in trials:
            if not trial.state.is_final:
                self._is_unknown(trial)

    def _is_unknown(self, trial: Trial) -> bool:
        watch = self._watch(trial)
        status = read_status(watch.paths)
        if status is None or status.state.is_final:
            return False
        return watch.life.look(status) is None

    def attach(self, trial: Trial) -> bool:
        """Return whether the run of a trial goes on, or has come to an end by itself.

        Not collective.
        """
        watch = self._watch(trial)
        status = read_status(watch.paths)
        if status is None or status.state is RunState.REFUSED:
            return False
        if status.state is RunState.STOPPED:
            return self._is_stopped_for_good(watch.paths)
        # A process of another host is watched until it is known; mostly `watch` has done so.
        if status.state.is_final or watch.life.watch() or _is_final(watch.paths):
            return True
        # So that a restart need not watch once more.
        with suppress(OSError):
            record_end(watch.paths, "its executor is gone")
        return False

    def was_asked_to_stop(self, trial: Trial) -> bool:
        """Return whether the run of a trial has stopped because it was asked to.

        Not collective.
        """
        paths = self._watch(trial).paths
        status = read_status(paths)
        is_stopped = status is not None and status.state is RunState.STOPPED
        return is_stopped and paths.stop_request.exists()

    def history(self, trial: Trial) -> Sequence[Report]:
        """Return all reports of a trial. Not collective."""
        watch = self._watch(trial)
        reports = read_reports(watch.paths, with_partial=True)
        return [make_report(trial, watch.clock, line) for line in reports]

    def forget(self, trial: Trial) -> None:
        """Forget what was seen of the run of a trial, which was moved aside. Not collective."""
        self._watches.pop(trial.trial_id, None)

    def look(self, trial: Trial) -> Look:
        """Return what is new of a trial. Not collective."""
        watch, now = self._watch(trial), time.monotonic()
        if self._decides:
            # Most of the time it is another one that has reported.
            if not self._executors.take_news(trial.trial_id) and now < watch.look_at:
                return Look()
            watch.look_at = now + _LOOK_WITHOUT_NEWS_S
        # Before the reports: what a run that is over has reported is complete.
        status = read_status(watch.paths)
        is_over = status is not None and status.state.is_final
        has_died = not is_over and status is not None and watch.life.look(status) is False
        if has_died and (after := read_status(watch.paths)) is not None:
            is_over, status = after.state.is_final, after
            has_died = not is_over
        watch.status = status
        is_decided_on = self._decides and not is_over and not has_died
        until = self._executors.reported_by(trial.trial_id) if is_decided_on else None
        lines = watch.take_lines(until)
        reports = [make_report(trial, watch.clock, line) for line in lines]
        if status is None:
            return Look(reports=reports, end=watch.explain_missing())
        watch.has_begun = True
        if not is_over and not has_died:
            return Look(reports=reports)
        self._executors.let_go(trial.trial_id)
        end = self._explain_death(watch, status) if has_died else end_of(status)
        if (end.was_stopped or has_died) and self._is_stopped_for_good(watch.paths):
            end = End(failed=False, was_stopped=True, is_for_good=True, reason=REASON)
        watch.note_end(end)
        return Look(reports=reports, end=end)

    def wait(self, timeout_s: float) -> None:
        """Wait until an executor of this runner has news or ends, or the time is over.

        Not collective.
        """
        self._executors.wait(timeout_s)

    def let_go_on(self, trial: Trial, report: Report) -> None:
        """Let the run of a trial begin its next report after one. Not collective.

        One that an earlier tuner has begun does not wait.
        """
        if self._decides:
            self._executors.decide(trial.trial_id, (report.attempt, report.number))

    def find_saved(self, trial: Trial) -> Saved | None:
        """Return the newest committed checkpoint of a trial; None if there is none yet.

        Not collective.
        """
        return find_saved(trial, self._watch(trial).clock)

    def has_saved(self, trial: Trial) -> bool:
        """Return whether a report of a trial came with a checkpoint, committed or not.

        Not collective.
        """
        watch = self._watch(trial)
        watch.has_saved = (
            watch.has_saved
            or any(line["checkpoint"] for line in read_reports(watch.paths))
            or bool(CheckpointStore(watch.paths.checkpoints).manifests())
        )
        return watch.has_saved

    def hold(self, trial: Trial, transfer: Transfer) -> None:
        """Keep the checkpoint of a transfer from being deleted until `release`. Not collective.

        Raises
        ------
        CheckpointError
            If it is gone.
        """
        self._clones.hold(trial, transfer)

    def release(self, trial: Trial) -> None:
        """Let the checkpoint of a transfer be deleted, if one is held. Not collective."""
        self._clones.release(trial)

    def clone(self, trial: Trial, transfer: Transfer) -> Origin:
        """Put a checkpoint of another trial in the place of the last one. Not collective.

        Raises
        ------
        HpctrainError
            If it is gone, or cannot be written.
        """
        return self._clones.clone(trial, transfer)

    def stop(self, trial: Trial) -> None:
        """Ask the run of a trial to stop at its next report. Not collective."""
        paths = self._watch(trial).paths
        try:
            request_stop(paths)
        except OSError as error:
            log(f"warning: cannot ask {paths.root} to stop: {error.strerror}.")
            return
        # One that an earlier tuner has begun looks for the request by itself.
        self._executors.notify_of_stop(trial.trial_id)

    def end(self, trials: Sequence[Trial], *, patience_s: float) -> None:
        """End the executors of some trials, all at the same time. Not collective.

        Parameters
        ----------
        patience_s
            Seconds for which their ends are waited for, all together.
        """
        end_processes([self._watch(trial).paths for trial in trials], patience_s=patience_s)

    def describe_left(self, trials: Sequence[Trial]) -> str:
        """Return which trials still run when the tuner ends, for its last line. Not collective."""
        names = ", ".join(trial.trial_id for trial in trials)
        return f"; {names} still run" if names else ""

    def _begin(self, trial: Trial, submission: Submission) -> None:
        """Begin the run of a trial that is ready to begin."""
        gpus = trial.slot.gpus
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        # What is in the way is of this sweep, whatever HPCTRAIN_EXISTING says of the sweep itself.
        executor = self._executors.begin(trial.trial_id)
        try:
            slot = RunSlot(
                variables=variables,
                template=self._template,
                tuner=executor,
                fork_server=self._offer(trial, submission, variables),
            )
            submit_prepared(submission, slot=slot, policy="auto")
            if self._decides:
                executor.promise_decisions()
        except BaseException:
            self._withdraw(trial)
            raise

    def _offer(self, trial: Trial, submission: Submission, variables: Mapping[str, str]) -> str:
        """Return by what the ranks of a trial begin without imports; empty without that."""
        return self._rank_templates.offer(submission, variables)

    def _withdraw(self, trial: Trial) -> None:
        """Take back what was offered to a trial that cannot begin."""

    def _job_name(self, trial: Trial) -> str | None:
        """Return the name of the job of a trial; None where it has none."""
        return None

    def _tuner_sign(self, trial: Trial) -> Path | None:
        """Return the file by which a trial sees a tuner that submits its further jobs."""
        return None

    def _make_life(self, paths: RunPaths) -> LifeTest:
        """Return what finds out whether the executor of a run is at work."""
        return LifeTest(paths, job_is_alive)

    def _explain_death(self, watch: Watch, status: RunStatus) -> End:
        """Return the end of a run whose executor is gone, and has not said so."""
        return watch.explain_death()

    @staticmethod
    def _is_stopped_for_good(paths: RunPaths) -> bool:
        """Return whether a person has stopped a trial."""
        return _stop_mark(paths).exists()

    def _scaling_of(self, trial: Trial) -> ScalingConfig:
        return self._make_trainer(trial.trial_id, trial.config).scaling_config

    def _share_of(self, trial: Trial, scaling: ScalingConfig) -> Mapping[str, AllocatedNode] | None:
        """Return what a trial has of nodes of an allocation; None where it is in none."""
        return None

    def _watch(self, trial: Trial) -> Watch:
        if (watch := self._watches.get(trial.trial_id)) is None:
            paths = RunPaths(self._run_of(trial.trial_id))
            watch = self._watches[trial.trial_id] = Watch.of(paths, self._make_life)
        return watch


def _stop_mark(paths: RunPaths) -> Path:
    return SweepPaths(root=paths.root.parent).stop_mark(paths.root.name)


def _is_final(paths: RunPaths) -> bool:
    status = read_status(paths)
    return status is not None and status.state in (RunState.FINISHED, RunState.FAILED)
