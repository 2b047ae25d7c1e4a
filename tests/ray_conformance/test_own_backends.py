"""Backends as Ray's documentation shows how to write them: hooks that are given a worker group."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

import hpctrain
from hpctrain import Backend, BackendConfig, DataParallelTrainer, RunConfig, ScalingConfig
from hpctrain.backend import BackendContext
from hpctrain.testing.thread_comm import run_on_threads
from tests.worlds import make_world


class KeyBackend(Backend):
    def on_start(self, worker_group, backend_config):
        def set_key(key):
            os.environ["KEY"] = f"{backend_config.prefix}-{key}"

        # Another one on each rank: that of rank 0 counts, as if the hook ran once.
        key = os.urandom(4).hex()
        worker_group.execute(set_key, key)
        keys = worker_group.execute(lambda: os.environ["KEY"])
        assert len(worker_group) == len(keys) == 2

        def set_number(number):
            os.environ["NUMBER"] = str(number)

        futures = [
            worker_group.execute_single_async(rank, set_number, number=rank)
            for rank in range(len(worker_group))
        ]
        assert [future.result() for future in futures] == [None, None]
        self.started = True

    def on_training_start(self, worker_group, backend_config):
        assert self.started
        # The session is there.
        sizes = worker_group.execute(lambda: hpctrain.get_context().get_world_size())
        assert sizes == [2, 2]

    def on_shutdown(self, worker_group, backend_config):
        worker_group.execute(lambda: os.environ.pop("KEY"))


@dataclass
class KeyConfig(BackendConfig):
    prefix: str = "key"

    @property
    def backend_cls(self):
        return KeyBackend


@pytest.mark.mpi
def test_hooks_that_send_functions_to_the_workers(tmp_path: Path):
    def train():
        context = hpctrain.get_context()
        seen = hpctrain.collective.broadcast_from_rank_zero(os.environ["KEY"])
        assert os.environ["NUMBER"] == str(context.get_world_rank())
        hpctrain.report({"same": seen == os.environ["KEY"], "key": seen})

    import hpctrain.collective  # for the function above

    result = DataParallelTrainer(
        train,
        backend_config=KeyConfig("secret"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert result.metrics["same"] is True
    assert result.metrics["key"].startswith("secret-")


def group_of(comm):
    world = make_world(comm.rank, comm.size)
    return BackendContext(
        world=world, comm=comm, cpus_per_worker=1, gpu_ids=(), visible_gpu_ids=(), address="here"
    )


def test_results_are_the_same_on_every_rank_and_an_exception_is_raised_on_all():
    def on_rank(comm):
        group = group_of(comm)
        with pytest.raises(ZeroDivisionError):
            group.execute_single(1, lambda: 1 / 0)
        with pytest.raises(ValueError, match="rank=3, but this group has the ranks 0 to 2"):
            group.execute_single(3, int)
        # Rank 0's argument.
        return group.execute(lambda value: value + 1, comm.rank * 10), group.execute_single(2, int)

    assert run_on_threads(3, on_rank) == [([1, 1, 1], 0)] * 3


def test_a_config_may_be_a_dataclass_of_either_kind_or_none():
    @dataclass(frozen=True)
    class Frozen(BackendConfig):
        port: int = 1

    class Plain(BackendConfig):
        def __init__(self, port):
            self.port = port

    assert Frozen().with_options(port=2) == Frozen(port=2)
    assert KeyConfig() == KeyConfig("key") != KeyConfig("other")
    assert Plain(1) == Plain(1) != Plain(2)
    assert BackendConfig() == BackendConfig()
    assert repr(Plain(1)) == "Plain(port=1)"
