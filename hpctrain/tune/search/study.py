"""`Study`: the study of Optuna that a sweep asks and tells, in memory or in a storage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hpctrain.checks import shown
from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.tune.search.parameters import import_optuna, is_same

# Ray Tune's.
_DEFAULT_NAME = "optuna"
_MARK = "hpctrain_trial"


class Study:
    """A study of Optuna, and which of its trials belong to a sweep.

    Parameters
    ----------
    sweep
        What no other sweep has: the studies of a storage are shared.
    mode
        ``min`` or ``max``.
    sampler, pruner
        Optuna's; None as a pruner: all trials go on.
    storage
        Optuna's, or its address; None: the study is kept in memory.
    name
        Of the study in the storage.

    Raises
    ------
    ConfigError
        If the storage cannot be used, or its study is another one.
    """

    def __init__(
        self, sweep: str, *, mode: str, sampler: Any, pruner: Any, storage: Any, name: str | None
    ) -> None:
        optuna = import_optuna()
        self._sweep, self._storage, self._is_stored = sweep, storage, storage is not None
        self._can_prune = pruner is not None
        direction = "minimize" if mode == "min" else "maximize"
        name = name or (_DEFAULT_NAME if self._is_stored else None)
        try:
            self.study = optuna.create_study(
                storage=storage,
                study_name=name,
                load_if_exists=self._is_stored,
                direction=direction,
                sampler=sampler,
                pruner=pruner or optuna.pruners.NopPruner(),
            )
            found = [each.name.lower() for each in self.study.directions]
        except Exception as error:  # of whatever the storage is made of
            raise ConfigError(
                f"OptunaSearch(storage={_show(storage)}, study_name={name!r}): the study cannot be "
                f"opened: {_first_line(error)}. Give the address of a database that this process "
                f"can read and write, such as 'sqlite:////home/me/study.db'; one that does not "
                f"exist is made, in a directory that does."
            ) from error
        if found != [direction]:
            raise ConfigError(
                f"the study {name!r} of OptunaSearch's storage is to {' and '.join(found)}, and "
                f"the sweep to {direction}. Choose another study_name, or mode."
            )
        self._open: dict[str, Any] = {}
        self._reported: dict[str, set[int]] = {}
        self._pruned: set[str] = set()
        self._stored: dict[str, Any] | None = None

    def add(self, number: int, *, parameters: Mapping[str, Any], chosen: Any, value: float) -> None:
        """Add a point whose value is known, once. Not collective.

        Parameters
        ----------
        number
            Of the point.
        parameters
            Distributions by name.
        chosen
            Values by name.
        value
            Of what is optimized.

        Raises
        ------
        ConfigError
            If a parameter has no value.
        """
        name = f"point {number}"
        if missing := [each for each in parameters if each not in chosen]:
            raise ConfigError(
                f"points_to_evaluate[{number}] has no {', '.join(missing)}. Each point of "
                f"evaluated_rewards needs all parameters."
            )
        if self._find(name) is None:
            trial = import_optuna().trial.create_trial(
                params=chosen,
                distributions=parameters,
                value=value,
                user_attrs={_MARK: self._mark(name)},
            )
            with self._errors_of_storage():
                self.study.add_trial(trial)

    def ask(self, trial_id: str, distributions: Mapping[str, Any] | None = None) -> Any:
        """Return a new trial of Optuna's. Not collective.

        Raises
        ------
        ConfigError
            If the study in the storage has the parameters with other choices.
        HpctrainError
            If the storage cannot be used any more.
        """
        try:
            with self._errors_of_storage():
                trial = self.study.ask(distributions)
                if self._is_stored:
                    trial.set_user_attr(_MARK, self._mark(trial_id))
        except ValueError as error:  # of a study in a storage, which has trials already
            if not self._is_stored:
                raise
            raise ConfigError(
                f"OptunaSearch's storage has trials of the study {self.study.study_name!r} with "
                f"another search space: {_first_line(error)} Choose another study_name."
            ) from error
        self._open[trial_id], self._reported[trial_id] = trial, set()
        return trial

    def take_back(
        self,
        trial_id: str,
        chosen: Mapping[str, Any],
        *,
        value_of: Callable[[str, Any], Any] = lambda name, value: value,
    ) -> bool:
        """Return whether the storage has a trial of this sweep, and go on with it. Not collective.

        One that has ended stays as it is.

        Parameters
        ----------
        chosen
            Values by name. A trial with others is of another sweep with the same search algorithm.
        value_of
            Returns what is compared, given a name and what was chosen: the study has more digits
            than a configuration whose values are multiples.
        """
        found = self._find(trial_id) if self._is_stored else None
        if found is None or any(
            name not in chosen or not is_same(value_of(name, value), value_of(name, chosen[name]))
            for name, value in found.params.items()
        ):
            return False
        if not found.state.is_finished():
            # Optuna makes no Trial of a FrozenTrial, and its constructor takes this number.
            self._open[trial_id] = import_optuna().trial.Trial(self.study, found._trial_id)
            self._reported[trial_id] = set(found.intermediate_values)
        return True

    def enqueue(self, chosen: Mapping[str, Any]) -> None:
        """Let the next trial have these values. Not collective."""
        with self._errors_of_storage():
            self.study.enqueue_trial(chosen)

    def __getitem__(self, trial_id: str) -> Any:
        """Return a trial of Optuna's that has not ended."""
        return self._open[trial_id]

    def report(self, trial_id: str, value: float, step: int) -> bool:
        """Tell a value between the first and the last; return whether to stop the trial there.

        Not collective.
        """
        trial = self._open.get(trial_id)
        if trial is None:
            return trial_id in self._pruned
        # Of a study in a storage Optuna has decided on it when it was new.
        if step not in self._reported[trial_id]:
            self._reported[trial_id].add(step)
            with self._errors_of_storage():
                trial.report(value, step)
                if self._can_prune and trial.should_prune():
                    self._pruned.add(trial_id)
        return trial_id in self._pruned

    def tell(self, trial_id: str, value: float | None) -> None:
        """Tell the last value of a trial; None if it has failed. Not collective."""
        trial = self._open.pop(trial_id, None)
        if trial is None:
            return
        states = import_optuna().trial.TrialState
        with self._errors_of_storage():
            if value is None:
                self.study.tell(trial, state=states.FAIL)
            elif trial_id in self._pruned:
                self.study.tell(trial, state=states.PRUNED)
            else:
                self.study.tell(trial, value)

    @contextmanager
    def _errors_of_storage(self) -> Iterator[None]:
        """Name the storage in the error that it raises, and the next step."""
        try:
            yield
        except (import_optuna().exceptions.StorageInternalError, ValueError) as error:
            if isinstance(error, ValueError) and not _is_damage(error):
                raise
            raise HpctrainError(
                f"the storage {_show(self._storage)} of OptunaSearch cannot be used any more: "
                f"{_first_line(error)}. Once it can be read and written, fit() again, or "
                f"Tuner.restore() if the sweep has begun."
            ) from error

    def _find(self, trial_id: str) -> Any:
        if self._stored is None:
            with self._errors_of_storage():
                trials = self.study.get_trials(deepcopy=False)
            self._stored = {
                trial.user_attrs[_MARK]: trial for trial in trials if _MARK in trial.user_attrs
            }
        return self._stored.get(self._mark(trial_id))

    def _mark(self, trial_id: str) -> str:
        return f"{self._sweep}/{trial_id}"


def _is_damage(error: ValueError) -> bool:
    """Return whether a journal could not be read: other errors of its kind are about values."""
    # What Optuna says of a line without an end.
    is_cut = str(error) == "Invalid log format."
    return is_cut or isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))


def _show(storage: Any) -> str:
    """Return a storage for a message, without a password."""
    # A journal has no repr of its own, and no public name for its file.
    if path := getattr(getattr(storage, "_backend", None), "_file_path", None):
        return f"JournalStorage of {path}"
    return re.sub(r"(://[^:/@]*):[^/]*@", r"\1:***@", shown(storage))


def _first_line(error: Exception) -> str:
    # Those of SQLAlchemy go on with the statement; Optuna's say less than what they are raised for.
    cause = error.__cause__ or error
    return next(iter(str(cause).splitlines()), "") or type(cause).__name__
