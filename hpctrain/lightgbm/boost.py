"""`LightGBMBoosting`: the loop of a LightGBMTrainer, on each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import hpctrain
from hpctrain.errors import ConfigError
from hpctrain.gbdt.boosting import TRAIN, Boosting, gpu_index
from hpctrain.worker.context import active_worker

if TYPE_CHECKING:
    import lightgbm

    from hpctrain.gbdt.features import Features
    from hpctrain.gbdt.table import ShardReader


@dataclass(frozen=True, kw_only=True)
class LightGBMBoosting(Boosting):
    """Boosts with LightGBM, one process a rank, over the network that the backend set up."""

    _OURS: ClassVar[Mapping[str, str]] = {
        "train_set": "datasets",
        "valid_sets": "datasets",
        "valid_names": "datasets",
        "num_boost_round": "num_boost_round",
        "init_model": "resume_from_checkpoint",
    }
    _ROUNDS: ClassVar[tuple[str, ...]] = (
        "num_iterations",
        "num_iteration",
        "n_iter",
        "num_tree",
        "num_trees",
        "num_round",
        "num_rounds",
        "nrounds",
        "num_boost_round",
        "n_estimators",
        "max_iter",
    )
    _LEARNER: ClassVar[tuple[str, ...]] = (
        "tree_learner",
        "tree",
        "tree_type",
        "tree_learner_type",
    )
    _PATIENCE: ClassVar[tuple[str, ...]] = (
        "early_stopping_round",
        "early_stopping_rounds",
        "early_stopping",
        "n_iter_no_change",
    )

    def __post_init__(self) -> None:
        """Check what a user gave."""
        super().__post_init__()
        for name in self._OURS.keys() & self.train_kwargs.keys():
            raise ConfigError(
                f"train_kwargs={{{name!r}: ...}}: the trainer sets it. Use {self._OURS[name]}."
            )
        for aliases, ours in (
            (self._ROUNDS, "num_boost_round"),
            (self._PATIENCE, "early_stopping=EarlyStopping(rounds=...)"),
        ):
            for name in set(aliases) & self.params.keys():
                raise ConfigError(f"params={{{name!r}: ...}}: use {ours} of the trainer.")
        if self.ingest == "external":
            raise ConfigError(
                "ingest='external': LightGBM keeps its compressed rows in memory. 'stream' keeps "
                "nothing else."
            )

    def __call__(self) -> None:
        """Boost, from the newest checkpoint. Collective."""
        from lightgbm import train

        from hpctrain.gbdt.rounds import Patience, Rounds, read_state
        from hpctrain.gbdt.table import open_datasets
        from hpctrain.lightgbm.callback import LoopCallback, saves
        from hpctrain.lightgbm.checkpoint import LightGBMCheckpoint
        from hpctrain.lightgbm.metrics import take_over
        from hpctrain.lightgbm.network import get_network_params

        comm = active_worker("LightGBMTrainer").comm
        state: Mapping[str, Any] = {"is_over": False, "early_stopping": None}
        booster = None
        if checkpoint := hpctrain.get_checkpoint():
            with checkpoint.as_directory() as directory:
                booster, state = LightGBMCheckpoint.load(directory), read_state(directory)
        done = 0 if booster is None else booster.current_iteration()
        if self.is_finished(done, is_over=state["is_over"]):
            return
        features, readers = open_datasets(self, comm)
        patience = None
        if self.early_stopping is not None:
            patience = Patience(self.early_stopping, state["early_stopping"])
        rounds = Rounds(
            save=saves(features),
            frequency=self.checkpoint_frequency,
            at_end=self.checkpoint_at_end,
            patience=patience,
        )
        params = self._params()
        metrics: list[Any] = []
        if comm.size > 1:
            network = get_network_params()
            if set(self._LEARNER) & params.keys():
                del network["tree_learner"]
            params, metrics = take_over({**params, **network})
        datasets = self._datasets(features, readers, params)
        extra = dict(self.train_kwargs)
        if own := extra.pop("feval", None):
            metrics += own if isinstance(own, list) else [own]
        train(
            params,
            datasets[TRAIN],
            num_boost_round=self.num_boost_round - done,
            valid_sets=list(datasets.values()),
            valid_names=list(datasets),
            init_model=booster,
            feval=metrics or None,
            # The other one is made of the model's text, which nobody needs.
            keep_training_booster=True,
            callbacks=[*extra.pop("callbacks", ()), LoopCallback(rounds)],
            **extra,
        )

    def _params(self) -> dict[str, Any]:
        given: dict[str, Any] = {"num_threads": self.threads, "verbosity": -1}
        if self.use_gpu:
            given.update(device_type="gpu", gpu_device_id=gpu_index())
        return {**given, **self.params}

    def _datasets(
        self, features: Features, readers: Mapping[str, ShardReader], params: Mapping[str, Any]
    ) -> dict[str, lightgbm.Dataset]:
        """Return a dataset for each dataset, ``train`` first. Collective."""
        from hpctrain.gbdt.table import check_rows, exact_dtype, find_bad_rows
        from hpctrain.lightgbm.ingest import DatasetMaker

        comm = active_worker("LightGBMTrainer").comm
        dtype = exact_dtype(readers[TRAIN].first(), features)
        maker = DatasetMaker(features, {**params, **self.dataset_params}, dtype=dtype, comm=comm)
        if self.ingest == "stream":
            found = {n: find_bad_rows(r.tables(features, dtype)) for n, r in readers.items()}
            check_rows(found, self, comm)
            return maker.streamed(readers, {name: seen["rows"] for name, seen in found.items()})
        tables = {name: reader.read(features, dtype, comm) for name, reader in readers.items()}
        check_rows({name: find_bad_rows([table]) for name, table in tables.items()}, self, comm)
        return maker.in_memory(tables)
