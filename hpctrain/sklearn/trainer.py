"""`SklearnTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpctrain.checkpoint import Checkpoint
from hpctrain.checks import check_column, column_names, given_or_default
from hpctrain.config import DataConfig, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError, MissingDatasetError, ReservedNameError
from hpctrain.sklearn.fitting import CV, TRAIN, SklearnFitting
from hpctrain.trainer import DataParallelTrainer

if TYPE_CHECKING:
    from hpctrain.preprocessors import Preprocessor


class SklearnTrainer(DataParallelTrainer):
    """Fits a scikit-learn estimator; scikit-learn's parallel tasks run on all ranks.

    These are the folds of `cv`, and the tasks that the estimator itself gives to joblib: the
    candidates of a search, the trees of a forest. Every rank has all rows. The estimator is stored
    with skops.

    Parameters
    ----------
    estimator
        An estimator, which is cloned before it is fitted.
    datasets
        Datasets by name. The estimator is fitted on ``train``; for each of the others the metrics
        have a mapping with ``test_score`` and ``score_time``.
    label_column
        Column to predict; None if there is none. All others are features.
    params
        Arguments of the estimator's ``set_params()``.
    scoring
        As in ``sklearn.model_selection.cross_validate``.
    cv
        Cross-validation on ``train`` before the fit: a number of folds, or a splitter. Its results
        are ``metrics["cv"]``: ``test_score`` of each fold, ``test_score_mean``, ``test_score_std``.
    return_train_score_cv
        Whether to add scores on the training rows of each fold.
    parallelize_cv
        Whether the folds run on all ranks. None is yes, unless workers have GPUs.
    set_estimator_cpus
        Whether to set ``n_jobs`` and ``thread_count``, if the estimator does not, to the CPUs of a
        worker that has more than one.
    fit_params
        Further arguments of the estimator's ``fit()``.
    scaling_config, run_config, metadata, resume_from_checkpoint, preprocessor
        As in `hpctrain.BaseTrainer`.

    Raises
    ------
    ConfigError
        If there is no ``train`` dataset, one is called ``cv``, a column is missing, or folds would
        share GPUs.

    Examples
    --------
    ::

        SklearnTrainer(
            estimator=RandomForestClassifier(),
            datasets={"train": train, "valid": valid},
            label_column="target",
            cv=5,
            scaling_config=ScalingConfig(num_workers=5),
        ).fit().metrics["cv"]["test_score_mean"]
    """

    def __init__(
        self,
        *,
        estimator: Any,
        datasets: Mapping[str, Any],
        label_column: str | None = None,
        params: Mapping[str, Any] | None = None,
        scoring: Any = None,
        cv: Any = None,
        return_train_score_cv: bool = False,
        parallelize_cv: bool | None = None,
        set_estimator_cpus: bool = True,
        fit_params: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        scaling = given_or_default("scaling_config", scaling_config, ScalingConfig)
        if parallelize_cv and scaling.use_gpu:
            raise ConfigError(
                "parallelize_cv=True with use_gpu=True: parallel folds would share GPUs. Set "
                "parallelize_cv=False."
            )
        _check_estimator(estimator)
        _check_datasets(datasets)
        if preprocessor is None:
            # A preprocessor may add columns: then the ranks check them.
            _check_columns(datasets, label_column)
        super().__init__(
            SklearnFitting(
                estimator=estimator,
                datasets=tuple(datasets),
                label_column=label_column,
                params=dict(params or {}),
                scoring=scoring,
                cv=cv,
                return_train_score_cv=return_train_score_cv,
                parallelize_cv=parallelize_cv,
                set_estimator_cpus=set_estimator_cpus,
                fit_params=dict(fit_params or {}),
                cpus=scaling.num_cpus_per_worker,
                use_gpu=scaling.use_gpu,
            ),
            dataset_config=DataConfig(datasets_to_split=()),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
            preprocessor=preprocessor,
        )

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> Any:
        """Return the estimator of a checkpoint. Not collective.

        Raises
        ------
        CheckpointError
            If it has none, is of another framework, or has objects of types that skops does not
            trust.
        """
        from hpctrain.sklearn.checkpoint import SklearnCheckpoint

        with checkpoint.as_directory() as directory:
            return SklearnCheckpoint.load(directory)

    @classmethod
    def _rebuild(cls, train_loop: Any, arguments: dict[str, Any]) -> SklearnTrainer:
        own = {name: getattr(train_loop, name) for name in _STORED}
        rest = {name: value for name, value in arguments.items() if name not in _NOT_TAKEN}
        return cls(**{**own, **rest})


_STORED = (
    *("estimator", "label_column", "params", "scoring", "cv"),
    *("return_train_score_cv", "parallelize_cv", "set_estimator_cpus", "fit_params"),
)
_NOT_TAKEN = ("train_loop_config", "backend_config", "dataset_config")


def _check_estimator(estimator: Any) -> None:
    if not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        raise ConfigError(
            f"estimator={estimator!r} is not an estimator of scikit-learn: it needs fit() and "
            f"get_params(). Give one, such as RandomForestClassifier()."
        )


def _check_datasets(datasets: Mapping[str, Any]) -> None:
    if TRAIN not in datasets:
        raise MissingDatasetError(
            f"datasets has {sorted(datasets) or 'nothing'}, but no {TRAIN!r}, which the estimator "
            f"is fitted on. Give datasets={{'train': ...}}."
        )
    if CV in datasets:
        raise ReservedNameError(
            f"a dataset is called {CV!r}, the name of the metrics of cross-validation. Choose "
            f"another name."
        )


def _check_columns(datasets: Mapping[str, Any], label_column: str | None) -> None:
    if label_column is None:
        return
    for name, dataset in datasets.items():
        columns = column_names(dataset)
        if columns is not None:
            check_column("label_column", label_column, dataset=name, columns=columns)
