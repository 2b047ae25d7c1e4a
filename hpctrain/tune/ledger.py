"""``tune.jsonl``: the memory of a sweep, one line for each event, beside its trials."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpctrain.errors import ConfigError, DamagedFileError
from hpctrain.own_files import DIRECTORY_MODE, FILE_MODE
from hpctrain.plan import spec
from hpctrain.rundir.files import append_durably, write_atomic
from hpctrain.rundir.reading import damaged, is_time, read_lines, scan_lines
from hpctrain.rundir.sweep import LEDGER_OF_SWEEP
from hpctrain.rundir.trust import read_own
from hpctrain.tune.plain import is_plain, readable
from hpctrain.tune.slots import Slot
from hpctrain.tune.trial import Origin, Transfer, Trial, TrialEvent

FORMAT = 1
_OWNER_ONLY = FILE_MODE & 0o600


@dataclass(frozen=True, kw_only=True)
class SweepPaths:
    """Where the files of a sweep are."""

    root: Path

    @property
    def events(self) -> Path:
        """Every event."""
        return self.root / LEDGER_OF_SWEEP

    @property
    def tuner(self) -> Path:
        """Search space and settings, a pickle."""
        return self.root / "tuner.pkl"

    @property
    def alive(self) -> Path:
        """What the tuner writes every two seconds, so that other hosts see that it lives."""
        return self.root / ".tuner"

    def config(self, trial_id: str, number: int = 0) -> Path:
        """Return the file of a configuration that JSON cannot hold, a pickle.

        Parameters
        ----------
        number
            Of the transfer that it came with; 0 for the first one.
        """
        return self.root / "configs" / f"{trial_id}{f'-{number}' if number else ''}.pkl"

    @property
    def stop_request(self) -> Path:
        """Its existence asks the tuner to stop the sweep, as that of a run asks its executor."""
        return self.root / "stop"

    @property
    def stopped(self) -> Path:
        """Directory of the trials that a person has stopped."""
        return self.root / "stopped"

    def stop_mark(self, trial_id: str) -> Path:
        """Return the file that says that a person has stopped a trial, for good."""
        return self.stopped / trial_id

    def run(self, trial_id: str) -> Path:
        """Return the run directory of a trial."""
        return self.root / trial_id


@dataclass(frozen=True, kw_only=True)
class SweepLedger:
    """Writes the ledger of a sweep; nothing else does."""

    paths: SweepPaths

    def append(self, event: str, **details: Any) -> None:
        """Append an event. Not collective. Durable when this returns.

        Raises
        ------
        OSError
            If it cannot be written as a whole.
        """
        line = json.dumps({"event": event, "time": time.time(), **details}, default=str) + "\n"
        append_durably(self.paths.events, line.encode())

    def add_trial(self, trial: Trial) -> None:
        """Write down a trial and its configuration. Not collective.

        Raises
        ------
        ConfigError
            If the configuration cannot be pickled.
        """
        is_exact = self._keep(trial, trial.config, 0)
        self.append(
            "trial-added",
            trial=trial.trial_id,
            config=trial.config if is_exact else readable(trial.config),
            config_is_exact=is_exact,
        )

    def add_transfer(self, trial: Trial, transfer: Transfer) -> None:
        """Write down that a trial is to go on as another one. Not collective.

        Raises
        ------
        ConfigError
            If the configuration cannot be pickled.
        """
        is_exact = self._keep(trial, transfer.config, transfer.number)
        self.append(
            "trial-perturbed",
            trial=trial.trial_id,
            donor=transfer.donor,
            checkpoint=transfer.checkpoint,
            number=transfer.number,
            iteration=transfer.iteration,
            seconds=transfer.seconds,
            config=transfer.config if is_exact else readable(transfer.config),
            config_is_exact=is_exact,
        )

    def _keep(self, trial: Trial, config: Mapping[str, Any], number: int) -> bool:
        """Write a configuration that JSON cannot hold; return whether it can."""
        if is_plain(config):
            return True
        path = self.paths.config(trial.trial_id, number)
        content = spec.pack(config, what=f"the configuration of {trial.trial_id}")
        path.parent.mkdir(DIRECTORY_MODE, exist_ok=True)
        write_atomic(path, content, mode=_OWNER_ONLY, durable=True)
        return False


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """What a ledger says."""

    started: Mapping[str, Any]
    """The first event: metric, mode, seed, number of samples and launcher."""
    trials: Mapping[str, Trial] = field(default_factory=dict)
    """By name, in the order in which they were made."""
    ended: Mapping[str, Any] | None = None
    """The event of the end; None if the sweep goes on, or its tuner died."""
    reason: str | None = None
    """Why it ended early, or the error that it was interrupted by."""
    path: str = ""
    """Directory of the sweep when it was last begun or restored; empty if that is not known."""
    job_id: str | None = None
    """Job of Slurm in which that was; None if it was in none."""
    restarts: int = 0
    """How often Slurm had started that job again by then."""
    earlier_s: float = 0.0
    """Seconds for which tuners ran the sweep before it was last begun or restored."""
    last_s: float = 0.0
    """Seconds from then until the last event."""
    in_pickles: frozenset[tuple[str, int]] = frozenset()
    """Configurations that the ledger only has for people to read: name of the trial, and number
    of the transfer that it came with (0: the first one)."""


def read_record(paths: SweepPaths) -> SweepRecord:
    """Return what the ledger of a sweep says; lines that are torn or damaged are left out.

    Not collective.

    Raises
    ------
    ConfigError
        If there is no sweep.
    """
    record = fold(read_lines(paths.events, is_event))
    if record is None:
        raise no_sweep(paths)
    return record


def has_sweep(paths: SweepPaths) -> bool:
    """Return whether there is a ledger with a sweep that can go on. Not collective.

    The first line of one may be torn, of a full disk or a killed tuner: then nothing has begun.
    """
    try:
        return fold(scan_lines(paths.events, is_event).values) is not None
    except DamagedFileError:
        return False


def no_sweep(paths: SweepPaths) -> ConfigError:
    """Return the error of a directory that is no sweep. Not collective."""
    there = "is not there" if not paths.root.exists() else "has no tune.jsonl with a sweep"
    return ConfigError(
        f"{paths.root} {there}: it is not a sweep of hpctrain.tune. Give the directory "
        f"storage_path/name of the Tuner's RunConfig."
    )


def fold(events: Iterable[Mapping[str, Any]]) -> SweepRecord | None:
    """Return what events say; None before the first sweep. Pure."""
    started: Mapping[str, Any] | None = None
    ended: Mapping[str, Any] | None = None
    trials: dict[str, Trial] = {}
    in_pickles, path, job_id, restarts = set(), "", None, 0
    earlier_s = last_s = since = 0.0
    reason = None
    for event in events:
        kind, trial = event["event"], trials.get(event.get("trial", ""))
        if started is None:
            since = event["time"]
        elif kind == "sweep-restored":
            # Events of versions without it say how long the sweep ran at least.
            earlier_s = max(event.get("earlier_s", 0.0), earlier_s + last_s)
            since, last_s = event["time"], 0.0
        # A clock may have been set back meanwhile.
        last_s = max(last_s, event["time"] - since)
        if kind == "sweep-started":
            started, path = started or event, event.get("path", path)
            job_id, restarts = event.get("job_id"), event.get("restarts", 0)
        elif kind == "sweep-restored":
            ended, path = None, event.get("path", path)
            reason = None
            job_id, restarts = event.get("job_id"), event.get("restarts", 0)
        elif kind == "sweep-ended":
            ended, reason = event, event.get("reason")
        elif kind == "sweep-interrupted":
            reason = event.get("reason")
        elif kind == "trial-added" and trial is None:
            trials[event["trial"]] = Trial(trial_id=event["trial"], config=event["config"])
            if not event.get("config_is_exact", True):
                in_pickles.add((event["trial"], 0))
        elif kind == "trial-perturbed" and trial is not None and _is_inside(event, trials):
            trial.perturb(_transfer_of(event))
            if not event.get("config_is_exact", True):
                in_pickles.add((event["trial"], event["number"]))
        elif kind == "trial-cloned" and trial is not None and trial.transfer is not None:
            trial.receive(
                Origin(transfer=trial.transfer, report=event["report"], attempt=event["attempt"])
            )
        elif trial is not None and kind in _EVENT_OF:
            _apply(event, trial)
    if started is None:
        return None
    return SweepRecord(
        started=started,
        trials=trials,
        ended=ended,
        reason=reason or None,
        path=path,
        job_id=job_id,
        restarts=restarts,
        earlier_s=earlier_s,
        last_s=last_s,
        in_pickles=frozenset(in_pickles),
    )


def _apply(event: Mapping[str, Any], trial: Trial) -> None:
    """Take a change of a trial's state in."""
    kind = event["event"]
    trial.apply(_EVENT_OF[kind])
    if kind == "trial-started":
        trial.slot = Slot.from_json(event)
    trial.without_progress = event.get("without_progress", trial.without_progress)
    trial.saved = event.get("saved", trial.saved)
    trial.reason = str(event.get("reason") or "")
    trial.metrics = event.get("metrics", trial.metrics)
    trial.reports = event.get("reports", trial.reports)
    if kind == "trial-stop":
        trial.stopped_after = event.get("after", trial.reports)
    elif kind == "trial-retry" and event.get("anew"):
        trial.begin_anew()


def put_configs(paths: SweepPaths, record: SweepRecord) -> None:
    """Give all trials of a record the configurations that they have. Not collective.

    Opens pickles.

    Raises
    ------
    ConfigError
        If others could have written a pickle, or one is gone.
    """
    for trial_id, trial in record.trials.items():
        if (trial_id, trial.config_number) in record.in_pickles:
            trial.config = _read_config(paths, trial_id, trial.config_number)
        coming = trial.transfer
        if coming is not None and (trial_id, coming.number) in record.in_pickles:
            config = _read_config(paths, trial_id, coming.number)
            trial.transfer = replace(coming, config=config)


def _read_config(paths: SweepPaths, trial_id: str, number: int) -> Any:
    path = paths.config(trial_id, number)
    try:
        return read_pickle(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} is gone, which has the configuration of {trial_id}. Bring it back, or "
            f"begin another sweep."
        ) from error


def read_pickle(path: Path) -> Any:
    """Return what a pickle of a sweep holds. Not collective.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ConfigError
        If others could have written it.
    DamagedFileError
        If it cannot be opened.
    """
    content = read_own(path)
    try:
        return spec.unpack(content)
    # A damaged pickle can raise anything, and so can a module of the user's that it imports.
    except Exception as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def is_event(value: Any) -> bool:
    """Return whether a JSON value is an event of a sweep. Pure."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("event"), str)
        and is_time(value.get("time"))
        and all(isinstance(value[name], kind) for name, kind in _KINDS.items() if name in value)
        and all(name in value for name in _REQUIRED.get(value["event"], ()))
    )


def _is_inside(event: Mapping[str, Any], trials: Mapping[str, Trial]) -> bool:
    """Return whether a transfer is from a checkpoint of a trial, and not from elsewhere."""
    name = event["checkpoint"]
    return event["donor"] in trials and Path(name).parts == (name,) and name != ".."


def _transfer_of(event: Mapping[str, Any]) -> Transfer:
    return Transfer(**{name: event[name] for name in (*_OF_TRANSFER, "time")})


_EVENT_OF = {
    "trial-started": TrialEvent.STARTED,
    "trial-pause": TrialEvent.PAUSE,
    "trial-paused": TrialEvent.PAUSED,
    "trial-stop": TrialEvent.STOP,
    "trial-ended": TrialEvent.ENDED,
    "trial-failed": TrialEvent.FAILED,
    "trial-interrupted": TrialEvent.INTERRUPTED,
    "trial-retry": TrialEvent.RETRY,
}
NAME_OF = {event: name for name, event in _EVENT_OF.items()}
"""What the ledger calls the events of a trial."""
_KINDS: Mapping[str, Any] = {
    "trial": str,
    "config": dict,
    "metrics": dict,
    "path": str,
    "gpus": list,
    "nodes": dict,
    **dict.fromkeys(("reports", "after", "without_progress", "saved", "restarts"), int),
    **dict.fromkeys(("reason", "metric", "mode", "job_id", "launcher"), (str, type(None))),
    "seed": (int, type(None)),
    **dict.fromkeys(("donor", "checkpoint"), str),
    **dict.fromkeys(("number", "iteration", "report", "attempt"), int),
    **dict.fromkeys(("seconds", "earlier_s"), (int, float)),
}
_OF_TRANSFER = ("number", "donor", "checkpoint", "iteration", "seconds", "config")
_REQUIRED = {
    "trial-added": ("trial", "config"),
    "trial-perturbed": ("trial", *_OF_TRANSFER),
    "trial-cloned": ("trial", "report", "attempt"),
    **dict.fromkeys(_EVENT_OF, ("trial",)),
}
