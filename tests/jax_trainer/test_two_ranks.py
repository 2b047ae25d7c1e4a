"""What a training function finds on two ranks. One run; each test looks at a part of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")

from hpctrain import Checkpoint, CheckpointError, Result, RunConfig, ScalingConfig
from hpctrain.jax import JaxCheckpoint, JaxTrainer
from tests import runs

pytestmark = pytest.mark.mpi

Findings = list[dict[str, Any]]


def _examination() -> Callable[[], Findings]:
    """Return the training function; what it needs is inside, so that it travels by value."""

    def shardings() -> tuple[Any, Any]:
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()), ("data",))
        return NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def learn(sharding: Any, place_batch: Callable[[Any], Any]) -> Any:
        import jax
        import numpy as np

        rng = np.random.default_rng(3)
        inputs, targets = (rng.normal(size=(8, 6)).astype("f4") for _ in range(2))
        weights = rng.normal(size=(6, 6)).astype("f4")
        if sharding is not None:
            weights = jax.make_array_from_callback((6, 6), sharding, lambda at: weights[at])

        @jax.jit
        def step(weights: Any, x: Any, y: Any) -> Any:
            slope = jax.grad(lambda w: ((x @ w - y) ** 2).mean())(weights)
            return weights - 0.1 * slope

        for _ in range(5):
            weights = step(weights, place_batch(inputs), place_batch(targets))
        return weights

    def compute_threads() -> int:
        from pathlib import Path

        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        return names.count("tf_XLAEigen\n")

    def train() -> Findings:
        import jax
        import numpy as np

        import hpctrain
        from hpctrain.jax import JaxCheckpoint
        from hpctrain.worker.context import active_worker

        rank = hpctrain.get_context().get_world_rank()
        whole, split = shardings()

        def my_part(batch: Any) -> Any:
            return jax.make_array_from_process_local_data(split, batch[4 * rank : 4 * rank + 4])

        parallel, sharded = learn(whole, my_part), learn(split, my_part)
        single = learn(None, lambda batch: batch)
        state = {
            "params": {"parallel": parallel, "sharded": [sharded]},
            "step": 5,
            "best": np.float32(0.5),
        }
        hpctrain.report({"step": 5}, JaxCheckpoint.from_state(state, label="digit"))
        found = {
            "place": [jax.process_index(), jax.process_count()],
            "devices": [(d.platform, d.process_index) for d in jax.devices()],
            "compute_threads": compute_threads(),
            "parallel": np.asarray(parallel.addressable_data(0)).tolist(),
            "shard": np.asarray(sharded.addressable_data(0)).tolist(),
            "single": np.asarray(single).tolist(),
        }
        return active_worker("train()").comm.allgather(found)

    return train


def _restoration() -> Callable[[], Any]:
    def train() -> Any:
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        import hpctrain
        from hpctrain.jax import JaxCheckpoint
        from hpctrain.worker.context import active_worker

        mesh = Mesh(np.array(jax.devices()), ("data",))
        split = NamedSharding(mesh, PartitionSpec("data"))
        like = jax.ShapeDtypeStruct((6, 6), np.float32, sharding=split)
        checkpoint = JaxCheckpoint(hpctrain.get_checkpoint().path)
        state = checkpoint.get_state(
            {"params": {"parallel": like, "sharded": [like]}, "step": 0, "best": np.float32(0)}
        )
        whole = checkpoint.get_state()
        found = {
            "shards": [
                np.asarray(array.addressable_data(0)).tolist()
                for array in (state["params"]["parallel"], state["params"]["sharded"][0])
            ],
            "numbers": [int(state["step"]), float(state["best"])],
            "whole": whole["params"]["sharded"][0].tolist(),
        }
        return active_worker("train()").comm.allgather(found)

    return train


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return runs.fit(_examination(), tmp_path_factory.mktemp("runs"), trainer=JaxTrainer)


@pytest.fixture(scope="module")
def findings(result: Result) -> Findings:
    return result.return_value


def test_the_devices_of_all_ranks_are_one_world_and_have_the_threads_of_their_ranks(
    findings: Findings,
) -> None:
    assert [found["place"] for found in findings] == [[0, 2], [1, 2]]
    for found in findings:
        assert found["devices"] == [("cpu", 0), ("cpu", 1)]
        assert found["compute_threads"] <= 1


def test_parameters_are_equal_on_all_ranks_and_to_training_on_the_whole_batch(
    findings: Findings,
) -> None:
    first, second = findings
    assert first["parallel"] == second["parallel"]
    # The halves of a batch are added up in another order: float32.
    assert np.allclose(first["parallel"], first["single"], rtol=1e-5, atol=1e-6)


def test_sharded_parameters_learn_the_same_and_lie_in_halves(findings: Findings) -> None:
    halves = [np.array(found["shard"]) for found in findings]
    assert [half.shape for half in halves] == [(3, 6), (3, 6)]
    assert np.allclose(np.concatenate(halves), findings[0]["single"], rtol=1e-5, atol=1e-6)


def test_another_number_of_ranks_restores_what_two_have_saved(
    result: Result, findings: Findings, tmp_path: Path
) -> None:
    resumed = JaxTrainer(
        _restoration(),
        scaling_config=ScalingConfig(num_workers=3),
        run_config=RunConfig(storage_path=tmp_path, name="three", launcher="local"),
        resume_from_checkpoint=result.checkpoint,
    ).fit()
    saved = np.concatenate([found["shard"] for found in findings])
    for rank, found in enumerate(resumed.return_value):
        mine = slice(2 * rank, 2 * rank + 2)
        parallel, sharded = found["shards"]
        assert np.array_equal(parallel, np.array(findings[0]["parallel"])[mine])
        assert np.array_equal(sharded, saved[mine])
        assert np.array_equal(found["whole"], saved)
        assert found["numbers"] == [5, 0.5]


def test_a_process_without_ranks_reads_the_state_too(result: Result, findings: Findings) -> None:
    state = JaxCheckpoint(result.checkpoint.path).get_state()
    saved = np.concatenate([found["shard"] for found in findings])
    assert np.array_equal(state["params"]["sharded"][0], saved)
    assert isinstance(state["params"]["sharded"][0], np.ndarray)
    assert int(state["step"]) == 5


def test_a_state_of_another_form_is_refused(result: Result, tmp_path: Path) -> None:
    checkpoint = JaxCheckpoint(result.checkpoint.path)
    with pytest.raises(CheckpointError, match="Give like= the structure and the shapes"):
        checkpoint.get_state({"params": np.zeros(3), "other": 1})
    tmp_path.joinpath("model.pt").touch()
    with pytest.raises(CheckpointError, match="has no state, the directory of a JAX state"):
        JaxCheckpoint(Checkpoint(tmp_path).path).get_state()


SPMD = """
import sys
import jax
from hpctrain import RunConfig, ScalingConfig
from hpctrain.jax import JaxTrainer

jax.devices()
JaxTrainer(
    lambda: None,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=sys.argv[1], name="late", verbose=0),
).fit()
"""


def test_ranks_that_have_computed_before_are_told_so(tmp_path: Path) -> None:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    done = subprocess.run(
        [str(mpiexec), "-n", "2", sys.executable, "-c", SPMD, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "JAX has computed in this process, or listed its devices, before" in done.stderr


def test_a_web_proxy_does_not_come_between_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> tuple[int, bool]:
        import os

        import jax

        return jax.device_count(), "no_grpc_proxy" in os.environ

    # A port on which nobody listens.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    result = JaxTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="proxy", launcher="local"),
    ).fit()
    assert result.return_value == (2, False)
