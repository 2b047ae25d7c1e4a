"""`SklearnFitting`: the training function of a SklearnTrainer, pickled for each rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hpctrain
from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import check_column
from hpctrain.errors import ConfigError
from hpctrain.worker.context import active_worker

if TYPE_CHECKING:
    import pandas

TRAIN = "train"
CV = "cv"
"""Key of the metrics of cross-validation."""
_CPU_PARAMETERS = ("n_jobs", "thread_count")


@dataclass(frozen=True, kw_only=True)
class SklearnFitting:
    """Fits an estimator; its cross-validation runs on all ranks. A training function."""

    estimator: Any
    datasets: Sequence[str]
    label_column: str | None
    params: Mapping[str, Any]
    scoring: Any
    cv: Any
    return_train_score_cv: bool
    parallelize_cv: bool | None
    """None is yes, unless workers have GPUs."""
    fit_params: Mapping[str, Any]
    cpus: int | None
    """CPUs of a worker; None, in one of an older version, leaves the estimator's own."""
    # Pickled ones of older versions lack the following fields: defaults must be constants.
    set_estimator_cpus: bool = True
    use_gpu: bool = False

    @property
    def has_parallel_folds(self) -> bool:
        """Whether the folds run on all ranks."""
        return not self.use_gpu if self.parallelize_cv is None else self.parallelize_cv

    @property
    def parameters(self) -> dict[str, Any]:
        """Hyperparameters for trackers."""
        return {"params": dict(self.params)}

    def __call__(self) -> None:
        """Cross-validate, fit, score, and report once. Collective."""
        from sklearn.base import clone

        from hpctrain.sklearn.checkpoint import SklearnCheckpoint
        from hpctrain.sklearn.parallel import parallel_over_ranks

        # What this run resumes from is the checkpoint of its one report. One of another run, which
        # a run may begin with, counts no report.
        if active_worker("SklearnTrainer").session.reports:
            return
        estimator = clone(self.estimator).set_params(**self.params)
        cpus = self.cpus or 1
        if self.set_estimator_cpus and cpus > 1:
            set_cpus(estimator, cpus)
        tables = {name: self._table(name) for name in self.datasets}
        x, y = tables[TRAIN]
        metrics: dict[str, Any] = {}
        with parallel_over_ranks():
            if self.cv is not None:
                metrics[CV] = self._cross_validate(estimator, x, y)
            begin = time.perf_counter()
            estimator.fit(x, y, **self.fit_params)
            metrics["fit_time"] = time.perf_counter() - begin
        for name in self.datasets:
            if name != TRAIN:
                metrics[name] = self._score(estimator, *tables[name])
        if hpctrain.get_context().get_world_rank() != 0:
            hpctrain.report(metrics)
            return
        from hpctrain.gbdt.features import Features

        features = Features(names=tuple(x.columns), label=self.label_column)
        with hpctrain.checkpoint_dir() as directory:
            SklearnCheckpoint.save(estimator, directory, features=features)
            hpctrain.report(metrics, Checkpoint.from_directory(directory))

    def _table(self, name: str) -> tuple[pandas.DataFrame, Any]:
        """Return features and labels of a whole dataset. Not collective."""
        table = as_frame(hpctrain.get_dataset_shard(name), name)
        if self.label_column is None:
            return table, None
        check_column("label_column", self.label_column, dataset=name, columns=table.columns)
        label = table[self.label_column]
        if missing := int(label.isna().sum()):
            raise ConfigError(
                f"dataset {name!r}: {missing} of {len(table)} rows have no label (column "
                f"{self.label_column!r}). Drop these rows, or fill them in."
            )
        return table.drop(columns=self.label_column), label.to_numpy()

    def _cross_validate(self, estimator: Any, x: Any, y: Any) -> dict[str, Any]:
        from sklearn.model_selection import cross_validate

        found = cross_validate(
            estimator,
            x,
            y,
            scoring=self.scoring,
            cv=self.cv,
            params=dict(self.fit_params) or None,
            return_train_score=self.return_train_score_cv,
            # None is the number of ranks.
            n_jobs=None if self.has_parallel_folds else 1,
        )
        metrics: dict[str, Any] = {}
        for key, values in found.items():
            metrics[key] = [float(value) for value in values]
            metrics[f"{key}_mean"] = float(values.mean())
            metrics[f"{key}_std"] = float(values.std())
        return metrics

    def _score(self, estimator: Any, x: Any, y: Any) -> dict[str, float]:
        begin = time.perf_counter()
        scores = {
            f"test_{name}": float(scorer(estimator, x, y))
            for name, scorer in scorers(estimator, self.scoring).items()
        }
        return {**scores, "score_time": time.perf_counter() - begin}


def scorers(estimator: Any, scoring: Any) -> dict[str, Callable[..., float]]:
    """Return scoring functions by name; a single one is ``score``. Not collective."""
    from sklearn.metrics import check_scoring, get_scorer

    if scoring is None or isinstance(scoring, str) or callable(scoring):
        return {"score": check_scoring(estimator, scoring)}
    named = scoring if isinstance(scoring, Mapping) else {name: name for name in scoring}
    return {name: s if callable(s) else get_scorer(s) for name, s in named.items()}


def set_cpus(estimator: Any, cpus: int) -> None:
    """Set the CPUs of an estimator, and of nested ones, unless they are set. In place."""
    settings = estimator.get_params(deep=True)
    chosen = {
        name: cpus
        for name, value in settings.items()
        if name.rpartition("__")[2] in _CPU_PARAMETERS and value is None
    }
    estimator.set_params(**chosen)


def as_frame(dataset: Any, name: str) -> pandas.DataFrame:
    """Return a dataset as a data frame; columns of arrays are split. Not collective.

    Raises
    ------
    ConfigError
        If it has no named columns.
    """
    from hpctrain.predict.feature_columns import flatten_frame

    if hasattr(dataset, "iloc"):
        return flatten_frame(dataset)
    if not hasattr(dataset, "materialize"):
        raise ConfigError(
            f"dataset {name!r} is a {type(dataset).__name__}, which has no named columns. Give a "
            f"pandas data frame, or a hpctrain.data.Dataset."
        )
    return flatten_frame(dataset.materialize().to_pandas())
