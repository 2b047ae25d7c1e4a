"""JAX in the user's own process: the debugger's home, checkpoints, predictions, and refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")

import hpctrain
from hpctrain import Checkpoint, ConfigError, RunConfig, ScalingConfig
from hpctrain.backend import BackendConfig
from hpctrain.jax import JaxCheckpoint, JaxConfig, JaxPredictor, JaxTrainer
from tests.runs import fit

X = np.random.default_rng(0).normal(size=(6, 3)).astype("f4")
PARAMS = {"weights": np.arange(3, dtype="f4"), "bias": np.float32(0.5)}


def score(params: Any, x: Any) -> Any:
    return x @ params["weights"] + params["bias"]


class Linear:
    """Has the method of a Flax module."""

    def apply(self, params: Any, x: Any) -> Any:
        return score(params, x)


def test_this_interpreter_trains_saves_and_keeps_its_own_arrays(tmp_path: Path) -> None:
    import jax

    mine = jax.numpy.arange(3.0)

    def train() -> float:
        params = {"weights": jax.numpy.ones(3)}
        hpctrain.report({"loss": 1.0}, JaxCheckpoint.from_state({"params": params, "step": 4}))
        return float(params["weights"].sum())

    result = fit(train, tmp_path, num_workers=0, trainer=JaxTrainer)
    assert result.return_value == 3.0
    assert float((mine + jax.numpy.arange(3.0)).sum()) == 6.0
    saved = JaxCheckpoint(result.checkpoint.path)
    assert saved.get_state()["params"]["weights"].tolist() == [1, 1, 1]
    like = {"params": {"weights": mine}, "step": 0}
    assert saved.get_state(like)["params"]["weights"].sharding == mine.sharding


def test_a_run_in_this_interpreter_does_not_choose_its_devices_for_good() -> None:
    code = """
import sys, tempfile
import jax
from hpctrain import RunConfig, ScalingConfig
from hpctrain.jax import JaxTrainer
from hpctrain.jax.process import computes_already

def train():
    return jax.device_count(), jax.config.jax_platforms

result = JaxTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=0),
    run_config=RunConfig(storage_path=tempfile.mkdtemp(), verbose=0),
).fit()
print(result.return_value, computes_already(), jax.config.jax_platforms)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "(1, 'cpu') False None\n", done.stdout + done.stderr


def test_a_checkpoint_holds_numbers_and_what_the_model_takes(tmp_path: Path) -> None:
    checkpoint = JaxCheckpoint.from_state(PARAMS, path=tmp_path / "new", features=["a", "b", "c"])
    assert sorted(p.name for p in checkpoint.path.iterdir()) == ["features.json", "state"]
    assert not [p for p in checkpoint.path.rglob("*") if b"cpickle" in p.name.encode()]
    state = checkpoint.get_state()
    assert state["weights"].tolist() == [0, 1, 2]
    assert state["weights"].dtype == np.float32


@pytest.mark.parametrize("model", [score, Linear, Linear()])
def test_a_function_or_a_module_scores_with_the_parameters(model: Any) -> None:
    for state in (PARAMS, {"params": PARAMS, "step": 3}):
        predictor = JaxPredictor.from_checkpoint(JaxCheckpoint.from_state(state), model=model)
        assert np.allclose(predictor.predict(X)["predictions"], X @ PARAMS["weights"] + 0.5)


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f8"])
def test_features_are_put_side_by_side_in_the_type_of_the_parameters(dtype: str) -> None:
    checkpoint = JaxCheckpoint.from_state(PARAMS, features=["a", "b", "c"])
    predictor = JaxPredictor.from_checkpoint(checkpoint, model=score)
    columns = X.astype(dtype)
    batch = {"c": columns[:, 2], "b": columns[:, 1], "a": columns[:, 0]}
    predicted = predictor.predict(batch)["predictions"]
    assert predicted.dtype == np.float32
    assert np.allclose(predicted, X @ PARAMS["weights"] + 0.5)
    with pytest.raises(ConfigError, match="has no 'b'"):
        predictor.predict({"a": X[:, 0], "c": X[:, 2]})


def test_columns_without_names_in_the_checkpoint_are_a_dict_of_arrays() -> None:
    def both(params: Any, batch: Any) -> dict[str, Any]:
        return {"sum": batch["a"] + batch["b"], "as_given": batch["b"]}

    predictor = JaxPredictor(both, PARAMS)
    predicted = predictor.predict({"a": X[:, 0], "b": np.arange(6)})
    assert np.allclose(predicted["sum"], X[:, 0] + np.arange(6))
    assert predicted["as_given"].tolist() == list(range(6))


def test_numbers_that_numpy_has_not_come_back_as_float32() -> None:
    import jax

    def halve(params: Any, x: Any) -> Any:
        return (x * params).astype(jax.numpy.bfloat16)

    predictor = JaxPredictor(halve, jax.numpy.bfloat16(0.5))
    assert predictor.predict(np.array([2.0, 4.0]))["predictions"].tolist() == [1, 2]
    assert predictor.predict(np.array([2.0, 4.0]))["predictions"].dtype == np.float32


def test_what_cannot_be_a_prediction_is_refused() -> None:
    checkpoint = JaxCheckpoint.from_state(PARAMS)
    with pytest.raises(ConfigError, match="needs model=, and got None: a checkpoint holds"):
        JaxPredictor.from_checkpoint(checkpoint)
    predictor = JaxPredictor(lambda params, x: [x], PARAMS)
    with pytest.raises(ConfigError, match="the model returned a list"):
        predictor.predict(X)
    with pytest.raises(ConfigError, match="use_gpu=True, and JAX has no such device here"):
        JaxPredictor(score, PARAMS, use_gpu=True)


def test_arguments_that_cannot_work_are_refused_before_anything_starts(tmp_path: Path) -> None:
    def train() -> None:
        pass

    with pytest.raises(
        ConfigError, match="jax_config='gloo' is of type str; type JaxConfig is needed"
    ):
        JaxTrainer(train, jax_config="gloo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="of type BackendConfig; type JaxConfig is needed"):
        JaxTrainer(train, jax_config=BackendConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"connect_timeout_s=...\) is 0"):
        JaxConfig(connect_timeout_s=0)


def test_a_jax_that_sees_no_gpu_is_noticed_before_the_training_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    before = jax.config.values["jax_cuda_visible_devices"]
    with pytest.raises(ConfigError, match=r"has the GPUs 4 of CUDA_VISIBLE_DEVICES=4,5, but jax"):
        JaxTrainer(
            lambda: None,
            scaling_config=ScalingConfig(num_workers=0, use_gpu=True),
            run_config=RunConfig(storage_path=tmp_path, verbose=0),
        ).fit()
    assert jax.config.values["jax_cuda_visible_devices"] == before


def test_a_rank_is_given_its_own_gpus_by_their_place_among_those_that_are_visible() -> None:
    code = (
        "import jax; from hpctrain.jax.process import use_devices; use_devices([2, 3]);"
        "print([jax.config.values[f'jax_{kind}_visible_devices'] for kind in ('cuda', 'rocm')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "['2,3', '2,3']\n", done.stderr


@pytest.mark.parametrize("package", ["jax", "orbax.checkpoint"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"pip install 'hpctrain\[jax\]'"):
        fit(
            lambda: JaxCheckpoint.from_state({"step": 1}),
            tmp_path,
            num_workers=0,
            trainer=JaxTrainer,
        )


def test_importing_the_trainer_does_not_import_jax() -> None:
    code = (
        "import sys; from hpctrain.jax import JaxCheckpoint, JaxConfig, JaxPredictor, JaxTrainer;"
        "JaxTrainer(lambda: None);"
        "print([name for name in ('jax', 'jaxlib', 'orbax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_the_predictor_of_a_checkpoint_is_known_by_its_features() -> None:
    from hpctrain.predict.registry import find_predictor

    checkpoint = JaxCheckpoint.from_state(PARAMS)
    assert find_predictor(Checkpoint(checkpoint.path)) is JaxPredictor


def test_integers_reach_a_model_of_floats() -> None:
    weights = np.array([[1.5], [2.0]], dtype=np.float32)
    predictor = JaxPredictor(lambda params, x: x @ params["w"], {"w": weights})
    rows = np.array([[1, 2], [3, 4]])
    assert np.array_equal(predictor.predict(rows)["predictions"], rows @ weights)
    assert predictor.predict(rows[:0])["predictions"].shape == (0, 1)


def test_an_integer_that_jax_would_cut_is_refused() -> None:
    predictor = JaxPredictor(lambda params, x: x, PARAMS)
    for value in (3_000_000_000, -4_000_000_000):
        with pytest.raises(ConfigError, match=rf"{value} .* int32.*jax_enable_x64"):
            predictor.predict({"user": np.array([5, value])})
    with pytest.raises(ConfigError, match="uint32"):
        predictor.predict(np.array([2**63 + 5], "u8"))
    with pytest.raises(ConfigError, match="3000000000"):
        predictor.predict(np.array([3_000_000_000]), dtype=np.int64)
    for batch in (np.array([2**31 - 1, -(2**31)]), np.array([], "i8"), np.array([2**32 - 1], "u8")):
        assert predictor.predict(batch)["predictions"].tolist() == batch.tolist()
    large = np.array([3_000_000_000])
    assert predictor.predict(large, dtype=np.float32)["predictions"].tolist() == [3e9]
