"""What Ray's scripts keep in dict checkpoints under the keys of ``ray.air.constants``."""

import pandas

from hpctrain import Checkpoint
from hpctrain.constants import MODEL_KEY, PREPROCESSOR_KEY
from hpctrain.preprocessors import StandardScaler


def test_a_preprocessor_in_a_dict_is_the_checkpoint_s_preprocessor() -> None:
    scaler = StandardScaler(["x"])
    frame = pandas.DataFrame({"x": [1.0, 3.0]})
    fitted = scaler.fit(frame)
    checkpoint = Checkpoint.from_dict({MODEL_KEY: 7, PREPROCESSOR_KEY: fitted})

    stored = checkpoint.get_preprocessor()
    assert stored is not None
    assert list(stored.transform_batch(frame)["x"]) == [-1.0, 1.0]
    assert checkpoint.to_dict() == {"model": 7}


def test_no_preprocessor_in_a_dict_is_none() -> None:
    checkpoint = Checkpoint.from_dict({MODEL_KEY: 7, PREPROCESSOR_KEY: None})
    assert checkpoint.get_preprocessor() is None
