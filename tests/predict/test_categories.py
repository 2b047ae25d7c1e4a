from __future__ import annotations

import numpy as np
import pandas

from hpctrain.predict.categories import encode_categories


def test_categories_become_their_places_and_others_are_missing():
    batch = {"colour": np.array(["g", "r", "?"], dtype=object), "x": np.arange(3.0)}
    encoded = encode_categories(batch, {"colour": ("r", "g")})
    assert np.array_equal(encoded["colour"], [1, 0, np.nan], equal_nan=True)
    assert encoded["x"] is batch["x"]


def test_a_value_that_pandas_calls_missing_has_no_category():
    batch = {"colour": np.array(["g", pandas.NA, pandas.NaT], dtype=object)}
    encoded = encode_categories(batch, {"colour": ("r", "g")})
    assert np.array_equal(encoded["colour"], [1, np.nan, np.nan], equal_nan=True)


def test_bytes_are_the_category_of_their_text():
    batch = {"colour": np.array([b"g", b"r", None], dtype=object)}
    encoded = encode_categories(batch, {"colour": ("r", "g")})
    assert np.array_equal(encoded["colour"], [1, 0, np.nan], equal_nan=True)
