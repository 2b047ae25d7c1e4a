"""Categories are found again, whatever type, unit and library a batch has them in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from hpctrain.data.formats import from_any
from hpctrain.preprocessors import (
    LabelEncoder,
    OneHotEncoder,
    OrdinalEncoder,
    SimpleImputer,
    storage,
)

Examples = Callable[[Callable[[np.random.Generator], None]], None]

UNITS = ("D", "h", "s", "ms", "us", "ns")


def encode(encoder: OrdinalEncoder, batch: Any) -> list[float]:
    encoded = encoder.transform_batch(batch)["c"]
    return encoded.to_pylist() if isinstance(encoded, pa.ChunkedArray) else encoded.tolist()


def test_times_match_in_every_unit_and_form(each_example: Examples) -> None:
    def check(rng: np.random.Generator) -> None:
        known = rng.choice(30_000, 4, replace=False).astype("M8[D]")
        asked = np.concatenate([known, rng.integers(30_000, 40_000, 2).astype("M8[D]")])
        order = np.argsort(known).argsort()
        expected = [*order.astype(float), None, None]
        fitted, unit = rng.choice(UNITS, 2)
        encoder = OrdinalEncoder(["c"]).fit({"c": known.astype(f"M8[{fitted}]")})
        values = asked.astype(f"M8[{unit}]")
        if unit == "h":
            values = values.astype("M8[s]")
        forms = [{"c": values}, {"c": asked.tolist()}, pd.DataFrame({"c": values})]
        forms += [pa.table({"c": pa.array(values)}), pd.DataFrame({"c": values}).astype(object)]
        for form in forms:
            codes = encode(encoder, form)
            assert [None if code != code else code for code in codes] == expected

    each_example(check)


def test_times_that_nanoseconds_do_not_reach_are_in_order_and_found(tmp_path: Path) -> None:
    years = np.array(["2020", "0900", "3000", "1999"], "M8[Y]")
    encoder = OrdinalEncoder(["c"]).fit({"c": years.astype("M8[us]")})
    storage.save(encoder, tmp_path)
    for loaded in (encoder, storage.load(tmp_path)):
        assert encode(loaded, {"c": years.astype("M8[s]")}) == [2, 0, 3, 1]
    label = LabelEncoder("c").fit({"c": years[[0, 3]].astype("M8[ms]")})
    numbers = label.transform_batch({"c": years[[0, 3]].astype("M8[ns]")})
    assert numbers["c"].tolist() == [1, 0]
    assert label.inverse_transform(numbers)["c"].astype("M8[Y]").tolist() == years[[0, 3]].tolist()


def test_large_integers_keep_their_digits_beside_missing_ones(each_example: Examples) -> None:
    def check(rng: np.random.Generator) -> None:
        base = int(rng.integers(2**54, 2**62))
        values = [base + int(step) for step in rng.permutation(5)]
        often = int(rng.integers(5))
        column = [*values, values[often], None]
        frames = (
            pd.DataFrame({"c": pd.array(column, "Int64")}),
            pa.table({"c": pa.array(column, pa.int64())}),
            {"c": column},
        )
        for frame in frames:
            imputer = SimpleImputer(["c"], strategy="most_frequent").fit(frame)
            assert imputer.stats_ == {"most_frequent(c)": values[often]}
            constant = SimpleImputer(["c"], strategy="constant", fill_value=values[often])
            for filled in (imputer.transform_batch(frame), constant.transform_batch(frame)):
                assert from_any(filled)["c"].tolist() == [*column[:6], values[often]]
        whole = pa.table({"c": values})
        encoder = OrdinalEncoder(["c"]).fit(whole)
        for frame in frames:
            codes = encode(encoder, frame)
            assert codes[:5] == [sorted(values).index(value) for value in values]
            assert codes[6] != codes[6] or codes[6] is None

    each_example(check)


def test_lists_of_mixed_values_do_not_depend_on_their_batch(each_example: Examples) -> None:
    def check(rng: np.random.Generator) -> None:
        pool: list[Any] = ["a", "1", 1, 2, "b", 0.5]
        values = [pool[at] for at in rng.integers(len(pool), size=8)]
        pairs = [[one, other] for one, other in zip(values[::2], values[1::2], strict=True)]
        for some in (pairs, pairs[:1]):
            cells = from_any(pd.DataFrame({"c": some}))["c"]
            assert [[*cell] for cell in cells] == some
        encoder = OneHotEncoder(["c"]).fit({"c": values})
        whole = encoder.transform_batch({"c": values})["c"].tolist()
        assert [row.index(1) for row in whole] == [
            list(encoder.stats_["unique_values(c)"]).index(value) for value in values
        ]
        cut = int(rng.integers(1, 8))
        parts = [values[:cut], values[cut:]]
        encoded = [encoder.transform_batch({"c": part})["c"] for part in parts]
        assert np.concatenate(encoded).tolist() == whole

    each_example(check)
