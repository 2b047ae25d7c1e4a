"""`XGBoostBoosting`: the loop of an XGBoostTrainer, on each rank."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import hpctrain
from hpctrain.errors import ConfigError
from hpctrain.gbdt.boosting import TRAIN, Boosting, gpu_index
from hpctrain.worker.context import active_worker

if TYPE_CHECKING:
    import xgboost

    from hpctrain.gbdt.features import Features
    from hpctrain.gbdt.table import ShardReader, Table


@dataclass(frozen=True, kw_only=True)
class XGBoostBoosting(Boosting):
    """Boosts with XGBoost, one process a rank, over its collective."""

    _OURS: ClassVar[Mapping[str, str]] = {
        "dtrain": "datasets",
        "evals": "datasets",
        "num_boost_round": "num_boost_round",
        "xgb_model": "resume_from_checkpoint",
        "early_stopping_rounds": "early_stopping=EarlyStopping(rounds=...)",
    }

    def __post_init__(self) -> None:
        """Check what a user gave."""
        super().__post_init__()
        for name in self._OURS.keys() & self.train_kwargs.keys():
            raise ConfigError(
                f"train_kwargs={{{name!r}: ...}}: the trainer sets it. Use {self._OURS[name]}."
            )

    def __call__(self) -> None:
        """Boost, from the newest checkpoint. Collective."""
        from xgboost import train

        from hpctrain.gbdt.rounds import Patience, Rounds, read_state
        from hpctrain.gbdt.table import open_datasets
        from hpctrain.xgboost.callback import LoopCallback, is_maximized, saves
        from hpctrain.xgboost.checkpoint import XGBoostCheckpoint

        comm = active_worker("XGBoostTrainer").comm
        state: Mapping[str, Any] = {"is_over": False, "early_stopping": None}
        booster = None
        if checkpoint := hpctrain.get_checkpoint():
            with checkpoint.as_directory() as directory:
                booster, state = XGBoostCheckpoint.load(directory), read_state(directory)
        done = 0 if booster is None else booster.num_boosted_rounds()
        if self.is_finished(done, is_over=state["is_over"]):
            return
        with ExitStack() as stack:
            features, readers = open_datasets(self, comm)
            matrices = stack.enter_context(self._matrices(features, readers))
            if booster is not None:
                _check_same_features(booster, features)
            patience = None
            if self.early_stopping is not None:
                patience = Patience(self.early_stopping, state["early_stopping"])
            rounds = Rounds(
                save=saves(features),
                frequency=self.checkpoint_frequency,
                at_end=self.checkpoint_at_end,
                patience=patience,
                maximize=is_maximized,
            )
            extra = dict(self.train_kwargs)
            train(
                self._params(),
                matrices[TRAIN],
                num_boost_round=self.num_boost_round - done,
                evals=[(matrix, name) for name, matrix in matrices.items()],
                xgb_model=booster,
                verbose_eval=extra.pop("verbose_eval", False),
                callbacks=[
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

    @contextmanager
    def _matrices(
        self, features: Features, readers: Mapping[str, ShardReader]
    ) -> Iterator[dict[str, xgboost.DMatrix]]:
        """Give a quantile matrix for each dataset, ``train`` first. Collective."""
        import numpy as np

        from hpctrain.gbdt.table import check_rows, find_bad_rows

        comm = active_worker("XGBoostTrainer").comm
        options = {"nthread": self.threads, **self.dataset_params}
        options.setdefault("max_bin", self.params.get("max_bin"))
        options["enable_categorical"] = bool(features.categories)
        if self.ingest == "memory":
            tables = {n: r.read(features, np.float32, comm) for n, r in readers.items()}
            check_rows({n: find_bad_rows([t]) for n, t in tables.items()}, self, comm)
            bins = self._bins(tables[TRAIN], options)
            made: dict[str, xgboost.DMatrix] = {}
            for name in readers:
                # The floats of a dataset are freed before those of the next are compressed.
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
        # XGBoost's sketch knows of weights and categories, and on a GPU it is quick.
        by_xgboost = train.weight is not None or options["enable_categorical"] or self.use_gpu
        if comm.size == 1 or by_xgboost:
            return None
        return cut_by_quantiles(train.matrix, comm, **options)

    def _in_memory(
        self, table: Table, features: Features, options: Mapping[str, Any]
    ) -> xgboost.DMatrix:
        from xgboost import QuantileDMatrix

        weight, groups = table.weight, table.groups
        if groups is not None and weight is not None:
            # XGBoost weighs whole groups.
            weight = weight[groups.cumsum() - groups]
        return QuantileDMatrix(
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
        batches = make_iterator(reader, features, cache=cache if is_external else None)
        return (ExtMemQuantileDMatrix if is_external else QuantileDMatrix)(batches, **options)


def feature_types(features: Features) -> list[str] | None:
    """Return which features are categories, for XGBoost. Not collective."""
    if not features.categories:
        return None
    return ["c" if name in features.categories else "q" for name in features.names]


def _check_same_features(booster: xgboost.Booster, features: Features) -> None:
    known = booster.feature_names
    if known is not None and tuple(known) != features.names:
        changed = sorted(set(known) ^ set(features.names)) or "their order"
        raise ConfigError(
            f"the checkpoint's model has {len(known)} features, the datasets have "
            f"{len(features.names)}; what differs: {changed}. Boosting goes on with the same "
            f"features only."
        )
