from __future__ import annotations

from hpctrain.predict.features import ModelFeatures


def test_what_is_written_beside_a_model_is_read_again(tmp_path):
    written = ModelFeatures(framework="torch", features=("a", "b"), label="y")
    written.write(tmp_path)
    assert ModelFeatures.read(tmp_path) == written
    assert ModelFeatures.read(tmp_path / "nowhere") is None
