"""A ``configure()`` of the user's says which worker gets what."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain
from hpctrain import DataConfig, DataParallelTrainer
from hpctrain.data import from_numpy
from hpctrain.errors import ConfigError, WorkerError
from tests import runs


class Reversed(DataConfig):
    """Gives the last part to the first worker, and draws; as Ray documents subclasses."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def configure(
        self,
        datasets: Mapping[str, Any],
        world_size: int,
        worker_handles: Any = None,
        worker_node_ids: Any = None,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        assert worker_handles is None
        assert len(worker_node_ids) == world_size
        order = datasets[self.name].random_shuffle(seed=random.randrange(2**31))
        return [
            {
                "mine": datasets[self.name].shard(
                    rank=world_size - 1 - rank, world_size=world_size
                ),
                "drawn": order,
                "list": [rank],
            }
            for rank in range(world_size)
        ]


class Default(DataConfig):
    """Adds to what every worker gets anyway."""

    def configure(self, datasets: Mapping[str, Any], world_size: int, *a: Any, **k: Any) -> Any:
        workers = super().configure(datasets, world_size, *a, **k)
        return [{**worker, "of": rank} for rank, worker in enumerate(workers)]


class Short(DataConfig):
    """Forgets a worker."""

    def configure(self, datasets: Mapping[str, Any], world_size: int, *a: Any, **k: Any) -> Any:
        return [dict(datasets)]


def fit(
    tmp_path: Path, function: Any, config: DataConfig, *, num_workers: int = 2, **datasets: Any
) -> Any:
    return runs.fit(
        function,
        tmp_path,
        num_workers=num_workers,
        datasets=datasets or {"train": from_numpy({"y": np.arange(7)})},
        dataset_config=config,
    ).return_value


def values(name: str) -> list[int]:
    return [int(row["y"]) for row in hpctrain.get_dataset_shard(name).iter_rows()]


def look() -> list[Any]:
    from hpctrain.worker.context import active_worker

    with pytest.raises(KeyError, match="It has \\['drawn', 'list', 'mine'\\]"):
        hpctrain.get_dataset_shard("train")
    seen = (values("mine"), values("drawn"), hpctrain.get_dataset_shard("list"))
    assert hpctrain.get_dataset_shard("mine") is hpctrain.get_dataset_shard("mine")
    return active_worker("look").comm.allgather(seen)


def test_each_worker_gets_what_configure_gives_it(tmp_path: Path) -> None:
    first, second = fit(tmp_path, look, Reversed("train"))
    assert (first[0], second[0]) == ([4, 5, 6], [0, 1, 2, 3])
    assert (first[2], second[2]) == ([0], [1])
    # One draw for all, not one of each rank.
    assert first[1] == second[1]
    assert sorted(first[1]) == [*range(7)]
    # A restored run has it, too.
    stored = DataParallelTrainer.restore(tmp_path / "run").dataset_config
    assert (type(stored).__name__, stored.name) == ("Reversed", "train")  # type: ignore[attr-defined]


def look_in_this_interpreter() -> tuple[Any, ...]:
    return values("train"), values("whole"), hpctrain.get_dataset_shard("of")


def test_a_subclass_may_add_to_what_every_worker_gets(tmp_path: Path) -> None:
    rows = from_numpy({"y": np.arange(3)})
    seen = fit(
        tmp_path,
        look_in_this_interpreter,
        Default(datasets_to_split=["train"]),
        num_workers=0,
        train=lambda: rows,
        whole=rows,
    )
    assert seen == ([0, 1, 2], [0, 1, 2], 0)
    workers = Default(datasets_to_split=["train"]).configure({"train": rows, "whole": rows}, 2)
    assert [
        [len(w[n].materialize().to_numpy()["y"]) for n in ("train", "whole")] for w in workers
    ] == [
        [2, 3],
        [1, 3],
    ]
    with pytest.raises(ConfigError, match=r"dataset 'train' of type list has no shard\(\)"):
        Default().configure({"train": [1]}, 2)


def test_a_worker_without_datasets_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"Short.configure\(\) returned .* each of the 2 workers"):
        fit(tmp_path, look, Short())


class Several(DataConfig):
    """Makes its own datasets, for a number of workers that it does not ask for."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def configure(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        rows = from_numpy({"y": np.arange(3)})
        if self.kind == "parts":
            return [{"train": part} for part in rows.streaming_split(2)]
        if self.kind == "others":
            return [{"train": from_numpy({"y": np.arange(3)}).iterator()} for _ in range(2)]
        if self.kind == "names":
            return [{name: rows.iterator()} for name in ("train", "test")]
        return [{"train": rows.iterator()} for _ in range(2)]


def test_each_worker_may_have_all_rows_of_a_configure_for_more_of_them(tmp_path: Path) -> None:
    function = partial(values, "train")
    assert fit(tmp_path, function, Several("whole"), num_workers=0) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["parts", "others", "names"])
def test_rows_of_a_configure_for_more_workers_are_not_left_out(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=r"Several.configure\(\) returned .* the 1 workers"):
        fit(tmp_path, partial(values, "train"), Several(kind), num_workers=0)
