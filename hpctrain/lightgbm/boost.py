"""`LightGBMBoosting`: the loop of a LightGBMTrainer, on each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.errors import ConfigError
from hpctrain.gbdt.boosting import (
    COMMON_DATASET_ARGUMENTS,
    EACH_ROW,
    TRAIN,
    Boosting,
    gpu_index,
)
from hpctrain.lightgbm.params import (
    ALIASES,
    by_own_names,
    check_dataset_params,
    check_learner,
    find_unknown,
    is_forest,
    over_ranks,
)
from hpctrain.log import log
from hpctrain.worker.context import active_worker

if TYPE_CHECKING:
    import lightgbm

    from hpctrain.gbdt.features import Features
    from hpctrain.gbdt.table import ShardReader


@dataclass(frozen=True, kw_only=True)
class LightGBMBoosting(Boosting):
    """Boosts with LightGBM, one process per rank, over the network of the backend."""

    _TRAIN_ARGUMENTS: ClassVar[Mapping[str, str]] = {
        "params": "params",
        "train_set": "datasets",
        "valid_sets": "datasets",
        "valid_names": "datasets",
        "num_boost_round": "num_boost_round",
        "init_model": "resume_from_checkpoint",
        "keep_training_booster": "get_model() of the trainer",
    }
    _DATASET_ARGUMENTS: ClassVar[Mapping[str, str]] = {
        **COMMON_DATASET_ARGUMENTS,
        "reference": "all datasets use the bins of 'train'",
        "init_score": EACH_ROW,
        "position": EACH_ROW,
        "feature_name": "they are the names of columns",
        "params": "dataset_params are themselves the parameters of a lightgbm.Dataset",
        "free_raw_data": "raw data is freed whenever possible",
    }

    def __post_init__(self) -> None:
        """Check the user's settings."""
        super().__post_init__()
        for of_library, ours in (
            ("num_iterations", "num_boost_round"),
            ("early_stopping_round", "early_stopping=EarlyStopping(rounds=...)"),
            ("categorical_feature", "categorical_columns"),
        ):
            given = {**self.params, **self.dataset_params}
            for name in {of_library, *ALIASES[of_library]} & given.keys():
                raise ConfigError(
                    f"params={{{name!r}: {given[name]!r}}}: the trainer sets {of_library}. Use "
                    f"{ours} of the trainer."
                )
        check_dataset_params(by_own_names(self.dataset_params))
        if self.ingest == "external":
            raise ConfigError(
                "ingest='external': LightGBM cannot keep its compressed rows on disk. Use "
                "ingest='stream', which keeps nothing else in memory."
            )

    def check_ranks(self, num_ranks: int) -> None:
        """Check that LightGBM supports the settings on several ranks. Not collective."""
        if num_ranks > 1:
            check_learner(self._named_params())

    def check_resume(self) -> None:
        """Check that the model is not a random forest. Not collective."""
        if is_forest(self._named_params()):
            raise ConfigError(
                "resume_from_checkpoint with boosting='rf': LightGBM cannot add trees to a random "
                "forest. Train all num_boost_round trees in a new run, without "
                "resume_from_checkpoint."
            )

    def boost(self) -> None:
        """Boost, from the newest checkpoint. Collective."""
        from lightgbm import train

        from hpctrain.gbdt.start import Start, find_start, make_rounds
        from hpctrain.gbdt.table import open_datasets
        from hpctrain.lightgbm.callback import LoopCallback, saves
        from hpctrain.lightgbm.checkpoint import LightGBMCheckpoint
        from hpctrain.lightgbm.metrics import TakenOver, take_over
        from hpctrain.lightgbm.network import get_network_params

        comm = active_worker("LightGBMTrainer").comm
        self.check_ranks(comm.size)
        start = find_start(self, LightGBMCheckpoint, count_rounds=lambda b: b.current_iteration())
        if start is None:
            return
        if start.booster is not None and is_forest(self._named_params()):
            if comm.rank == 0:
                log(
                    f"LightGBM cannot add trees to a random forest: its {start.done} trees are "
                    f"trained again."
                )
            start = Start(features=start.features)
        for unknown in find_unknown(self.params) if comm.rank == 0 else ():
            log(f"warning: {unknown}")
        features, readers = open_datasets(self, comm, known=start.features)
        rounds = make_rounds(self, start, saves(features))
        params = self._params()
        taken = TakenOver(params=params)
        if comm.size > 1:
            taken = take_over(over_ranks(params, get_network_params()))
            params = dict(taken.params)
        metrics: list[Any] = list(taken.functions)
        datasets = self._datasets(features, readers, params)
        extra = dict(self.train_kwargs)
        if own := extra.pop("feval", None):
            metrics += own if isinstance(own, list) else [own]
        trained = train(
            params,
            datasets[TRAIN],
            num_boost_round=self.num_boost_round - start.done,
            valid_sets=list(datasets.values()),
            valid_names=list(datasets),
            init_model=start.booster,
            feval=metrics or None,
            # Otherwise LightGBM would make a second booster from the text of the model.
            keep_training_booster=True,
            callbacks=[*extra.pop("callbacks", ()), LoopCallback(rounds, taken)],
            **extra,
        )
        # Set if a user's callback has stopped boosting.
        best = trained.best_iteration
        rounds.finish(trained, best if best > 0 else trained.current_iteration())

    def _params(self) -> dict[str, Any]:
        given: dict[str, Any] = {"num_threads": self.threads, "verbosity": -1}
        if self.use_gpu:
            given.update(device_type="gpu", gpu_device_id=gpu_index())
        return {**given, **self._named_params()}

    def _named_params(self) -> dict[str, Any]:
        return {**by_own_names(self.params), **by_own_names(self.dataset_params)}

    def _datasets(
        self, features: Features, readers: Mapping[str, ShardReader], params: Mapping[str, Any]
    ) -> dict[str, lightgbm.Dataset]:
        """Return a dataset for each dataset, ``train`` first. Collective."""
        from hpctrain.gbdt.table import check_rows, exact_dtype, find_bad_rows
        from hpctrain.lightgbm.ingest import DatasetMaker

        comm = active_worker("LightGBMTrainer").comm
        dtype = exact_dtype(readers[TRAIN].first(), features)
        maker = DatasetMaker(features, params, dtype=dtype, comm=comm)
        if self.ingest == "stream":
            found = {n: find_bad_rows(r.tables(features, dtype)) for n, r in readers.items()}
            check_rows(found, self, comm)
            return maker.streamed(readers, {name: seen["rows"] for name, seen in found.items()})
        tables = {name: reader.read(features, dtype, comm) for name, reader in readers.items()}
        check_rows({name: find_bad_rows([table]) for name, table in tables.items()}, self, comm)
        return maker.in_memory(tables)
