"""`XGBoostBoosting`: the loop of an XGBoostTrainer, on each rank."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.errors import ConfigError
from hpctrain.gbdt.boosting import (
    COMMON_DATASET_ARGUMENTS,
    EACH_ROW,
    TRAIN,
    Boosting,
    gpu_index,
)
from hpctrain.worker.context import active_worker

if TYPE_CHECKING:
    import xgboost

    from hpctrain.gbdt.features import Features
    from hpctrain.gbdt.table import ShardReader, Table


_ON_VALUES = ("approx", "exact")
"""Tree methods that need the values of features, not only the bins."""


@dataclass(frozen=True, kw_only=True)
class XGBoostBoosting(Boosting):
    """Boosts with XGBoost, one process per rank, over its communicator."""

    _TRAIN_ARGUMENTS: ClassVar[Mapping[str, str]] = {
        "params": "params",
        "dtrain": "datasets",
        "evals": "datasets",
        "num_boost_round": "num_boost_round",
        "xgb_model": "resume_from_checkpoint",
        "early_stopping_rounds": "early_stopping=EarlyStopping(rounds=...)",
    }
    _ON_QUANTILES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "tree_method": ("hist", "auto", "gpu_hist", *_ON_VALUES),
        "booster": ("gbtree", "dart"),
    }
    _UPDATERS: ClassVar[tuple[str, ...]] = (
        "grow_quantile_histmaker",
        "grow_gpu_hist",
        "prune",
        "sync",
    )
    _DATASET_ARGUMENTS: ClassVar[Mapping[str, str]] = {
        **COMMON_DATASET_ARGUMENTS,
        "ref": "all datasets use the bins of 'train'",
        "qid": "use group_column",
        "base_margin": EACH_ROW,
        "label_lower_bound": EACH_ROW,
        "label_upper_bound": EACH_ROW,
        "feature_names": "they are the names of columns",
        "feature_types": "use categorical_columns",
        "enable_categorical": "use categorical_columns",
        "data_split_mode": "each rank has its part of the rows",
    }
    _OF_BINS: ClassVar[tuple[str, ...]] = ("max_bin", "max_quantile_batches", "ref")
    _MATRIX_ARGUMENTS: ClassVar[tuple[str, ...]] = (
        "feature_weights",
        "max_bin",
        "max_quantile_batches",
        "missing",
        "nthread",
        "silent",
    )

    def __post_init__(self) -> None:
        """Check the user's settings."""
        super().__post_init__()
        if unknown := sorted(self.dataset_params.keys() - {*self._MATRIX_ARGUMENTS}):
            raise ConfigError(
                f"dataset_params has {unknown}, but xgboost.QuantileDMatrix has no such arguments. "
                f"Use some of {list(self._MATRIX_ARGUMENTS)}."
            )
        for name, known in self._ON_QUANTILES.items():
            if self.params.get(name, known[0]) not in known:
                raise ConfigError(
                    f"params={{{name!r}: {self.params[name]!r}}}: the trainer makes an "
                    f"xgboost.QuantileDMatrix of each dataset, and XGBoost supports only {name} of "
                    f"{list(known)} with it. Use one of these, or a train_loop_per_worker with an "
                    f"xgboost.DMatrix."
                )
        if self.ingest != "memory" and self._needs_values:
            raise ConfigError(
                f"ingest={self.ingest!r} with params={{'tree_method': "
                f"{self.params['tree_method']!r}}}: this method needs the values of all features, "
                f"but only their bins are kept. Use tree_method='hist', or ingest='memory'."
            )
        updaters = [name.strip() for name in str(self.params.get("updater", "")).split(",") if name]
        if others := [name for name in updaters if name not in self._UPDATERS]:
            raise ConfigError(
                f"params={{'updater': {self.params['updater']!r}}}: the trainer makes an "
                f"xgboost.QuantileDMatrix of each dataset, and XGBoost does not support {others} "
                f"with it. Use some of {list(self._UPDATERS)}, or a train_loop_per_worker with an "
                f"xgboost.DMatrix."
            )
        for name in self.datasets:
            if "-" in name:
                raise ConfigError(
                    f"datasets has {name!r}, but XGBoost separates the names of dataset and metric "
                    f"by '-'. Call it {name.replace('-', '_')!r}."
                )

    @property
    def _needs_values(self) -> bool:
        return self.params.get("tree_method") in _ON_VALUES

    def check_ranks(self, num_ranks: int) -> None:
        """Check that XGBoost supports the settings on this number of ranks. Not collective.

        Raises
        ------
        ConfigError
            If it does not; the message names the setting.
        """
        if num_ranks > 1 and self.params.get("tree_method") == "exact":
            raise ConfigError(
                f"params={{'tree_method': 'exact'}} on {num_ranks} workers: XGBoost supports this "
                f"method in one process only. Use 'hist' or 'approx', or num_workers=1."
            )

    def boost(self) -> None:
        """Boost, from the newest checkpoint. Collective."""
        from xgboost import train

        from hpctrain.gbdt.start import find_start, make_rounds
        from hpctrain.gbdt.table import open_datasets
        from hpctrain.xgboost.callback import LoopCallback, SeededRounds, saves
        from hpctrain.xgboost.checkpoint import XGBoostCheckpoint

        comm = active_worker("XGBoostTrainer").comm
        start = find_start(self, XGBoostCheckpoint, count_rounds=lambda b: b.num_boosted_rounds())
        if start is None:
            return
        if start.booster is not None:
            # XGBoost's early stopping stores them, and predictors would ignore the rounds to come.
            start.booster.set_attr(best_iteration=None, best_score=None)
        with ExitStack() as stack:
            features, readers = open_datasets(self, comm, known=start.features)
            features = replace(features, missing=self._missing)
            matrices = stack.enter_context(self._matrices(features, readers))
            rounds = make_rounds(self, start, saves(features))
            extra = dict(self.train_kwargs)
            train(
                self._params(),
                matrices[TRAIN],
                num_boost_round=self.num_boost_round - start.done,
                evals=[(matrix, name) for name, matrix in matrices.items()],
                xgb_model=start.booster,
                verbose_eval=extra.pop("verbose_eval", False),
                callbacks=[
                    *([SeededRounds(self.params)] if SeededRounds.is_needed(self.params) else ()),
                    *extra.pop("callbacks", ()),
                    LoopCallback(rounds, total=self.num_boost_round),
                ],
                **extra,
            )

    def _params(self) -> dict[str, Any]:
        params = {"nthread": self.threads, **self.params}
        if self.use_gpu:
            params.setdefault("device", f"cuda:{gpu_index()}")
        if "max_bin" in self.dataset_params:
            params.setdefault("max_bin", self.dataset_params["max_bin"])
        return params

    @property
    def _missing(self) -> float | None:
        missing = self.dataset_params.get("missing")
        return None if missing is None or missing != missing else float(missing)

    @contextmanager
    def _matrices(
        self, features: Features, readers: Mapping[str, ShardReader]
    ) -> Iterator[dict[str, xgboost.DMatrix]]:
        """Yield a matrix for each dataset, ``train`` first. Collective."""
        import numpy as np

        from hpctrain.gbdt.table import check_rows, find_bad_rows

        comm = active_worker("XGBoostTrainer").comm
        options = {"nthread": self.threads, **self.dataset_params}
        # Features.matrix() makes NaN of it.
        options.pop("missing", None)
        options.setdefault("max_bin", self.params.get("max_bin"))
        options["enable_categorical"] = bool(features.categories)
        if self.ingest == "memory":
            tables = {n: r.read(features, np.float32, comm) for n, r in readers.items()}
            check_rows({n: find_bad_rows([t]) for n, t in tables.items()}, self, comm)
            bins = None if self._needs_values else self._bins(tables[TRAIN], options)
            made: dict[str, xgboost.DMatrix] = {}
            for name in readers:
                # Free the floats of a dataset before compressing the next one.
                made[name] = self._in_memory(
                    tables.pop(name), features, {**options, "ref": made.get(TRAIN, bins)}
                )
            yield made
            return
        found = {n: find_bad_rows(r.tables(features, np.float32)) for n, r in readers.items()}
        check_rows(found, self, comm)
        with tempfile.TemporaryDirectory(prefix="hpctrain-xgboost-") as cache:
            made = {}
            for name, reader in readers.items():
                made[name] = self._batch_by_batch(
                    reader, features, {**options, "ref": made.get(TRAIN)}, Path(cache) / name
                )
            yield made
            made.clear()

    def _bins(self, train: Table, options: Mapping[str, Any]) -> xgboost.DMatrix | None:
        """Return the bins of features; None leaves them to XGBoost. Collective."""
        from hpctrain.xgboost.cuts import cut_by_quantiles

        comm = active_worker("XGBoostTrainer").comm
        # Only XGBoost's sketch supports weights and categories; on a GPU it is fast.
        by_xgboost = train.weight is not None or options["enable_categorical"] or self.use_gpu
        if comm.size == 1 or by_xgboost:
            return None
        return cut_by_quantiles(train.matrix, comm, **options)

    def _in_memory(
        self, table: Table, features: Features, options: Mapping[str, Any]
    ) -> xgboost.DMatrix:
        from xgboost import DMatrix, QuantileDMatrix

        make: type[DMatrix] = QuantileDMatrix
        if self._needs_values:
            make = DMatrix
            options = {n: v for n, v in options.items() if n not in self._OF_BINS}
        weight, groups = table.weight, table.groups
        if groups is not None and weight is not None:
            # XGBoost takes a weight per group, not per row.
            weight = weight[groups.cumsum() - groups]
        return make(
            table.matrix,
            label=table.label,
            weight=weight,
            group=groups,
            feature_names=list(features.names),
            feature_types=feature_types(features),
            **options,
        )

    def _batch_by_batch(
        self, reader: ShardReader, features: Features, options: dict[str, Any], cache: Path
    ) -> xgboost.DMatrix:
        from xgboost import ExtMemQuantileDMatrix, QuantileDMatrix

        from hpctrain.xgboost.iterator import make_iterator

        is_external = self.ingest == "external"
        batches = make_iterator(
            reader,
            features,
            types=feature_types(features),
            cache=cache if is_external else None,
        )
        return (ExtMemQuantileDMatrix if is_external else QuantileDMatrix)(batches, **options)


def feature_types(features: Features) -> list[str] | None:
    """Return the types of features for XGBoost, None if all are numbers. Not collective."""
    if not features.categories:
        return None
    return ["c" if name in features.categories else "q" for name in features.names]
