"""Categories of pandas and Arrow stay what they are, on any way through a dataset."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from hpctrain import ConfigError
from hpctrain.data import (
    Dataset,
    from_arrow,
    from_numpy,
    from_pandas,
    read_hdf5,
    read_numpy,
    read_parquet,
)
from hpctrain.preprocessors import Categorizer, Chain, CustomKBinsDiscretizer, SimpleImputer

Examples = Callable[[Callable[[np.random.Generator], None]], None]

VALUES: dict[str, Any] = {
    "texts": ["z", "b", "é/ 1", "a", ""],
    "integers": [5, -1, 2**60 + 1, 0],
    "fractions": [0.5, -1.5, 1e300],
    "bools": [True, False],
    "times": pd.to_datetime(["2024-02-29", "1999-01-01", "2030-07-01"]),
}


def some_categories(rng: np.random.Generator, kind: str, rows: int) -> pd.Series:
    values = pd.Index(VALUES[kind])[rng.permutation(len(VALUES[kind]))]
    missing = rng.random() < 0.5
    codes = rng.integers(-1 if missing else 0, len(values) - (rng.random() < 0.5), rows)
    ordered = bool(rng.integers(2))
    return pd.Series(pd.Categorical.from_codes(codes, categories=values, ordered=ordered))


def some_frame(rng: np.random.Generator) -> pd.DataFrame:
    rows = int(rng.integers(1, 40))
    frame = pd.DataFrame({"n": np.arange(rows)})
    for kind in rng.permutation([*VALUES])[: rng.integers(1, 4)]:
        frame[str(kind)] = some_categories(rng, str(kind), rows)
    return frame


def batches_of(dataset: Dataset, rng: np.random.Generator, form: str) -> Iterator[Any]:
    """Give the batches of all ranks, of an epoch that stops somewhere and is then resumed."""
    first, second, stop = (int(number) for number in rng.integers(1, 4, 3))
    options: Any = {"batch_size": int(rng.integers(1, 9)), "batch_format": form}
    options["shuffle"] = bool(rng.integers(2))
    shards = [dataset.shard(rank=rank, world_size=first) for rank in range(first)]
    for shard in shards:
        for batch, _ in zip(shard.iter_batches(**options), range(stop), strict=False):
            yield batch
            state = shard.state_dict()
    for rank in range(second):
        shard = dataset.shard(rank=rank, world_size=second)
        shard.load_state_dict(pickle.loads(pickle.dumps(state)))
        if not state["taken"] or shard.num_rows:
            yield from shard.iter_batches(**options)


def same(batch: Any) -> Any:
    return batch


STEPS: list[Callable[[Dataset], Dataset]] = [
    lambda rows: rows.map_batches(same),
    lambda rows: rows.map_batches(same, zero_copy_batch=True),
    lambda rows: rows.map_batches(same, batch_format="pandas"),
    lambda rows: rows.map_batches(same, batch_format="pyarrow"),
    lambda rows: rows.random_shuffle(seed=3) if rows.keeps_rows else rows,
    lambda rows: rows.materialize(),
    lambda rows: pickle.loads(pickle.dumps(rows)),
    lambda rows: from_arrow(rows.to_arrow()),
    lambda rows: from_pandas(rows.to_pandas()),
]
FILTERS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda batch: batch["n"] % 3 > 0,
    "pandas": lambda frame: frame["n"] % 3 > 0,
}


def test_categories_are_those_of_pandas_on_any_way_through_a_dataset(
    each_example: Examples,
) -> None:
    def example(rng: np.random.Generator) -> None:
        expected = frame = some_frame(rng)
        rows = from_pandas(frame)
        for place in rng.integers(0, len(STEPS), rng.integers(0, 4)):
            rows = STEPS[place](rows)
        if rng.random() < 0.3:
            form: Any = str(rng.choice([*FILTERS]))
            rows = rows.filter(FILTERS[form], batch_format=form)
            expected = frame[frame["n"] % 3 > 0]
        kind = str(rng.choice(["pandas", "pyarrow"]))
        found = [frame[:0]]
        for batch in batches_of(rows, rng, kind):
            if kind == "pyarrow":
                types = [batch.schema.field(name).type for name in frame.columns[1:]]
                assert all(map(pa.types.is_dictionary, types))
                batch = batch.to_pandas()
            assert all(same_type(batch[name].dtype, frame[name].dtype) for name in frame)
            found.append(batch)
        whole = pd.concat(found).sort_values("n")
        for name in frame:
            assert present(whole[name]) == present(expected[name])

    each_example(example)


def same_type(found: Any, expected: Any) -> bool:
    if not isinstance(expected, pd.CategoricalDtype):
        return bool(found == expected)
    return (
        isinstance(found, pd.CategoricalDtype)
        and found.ordered == expected.ordered
        and found.categories.tolist() == expected.categories.tolist()
    )


def present(series: pd.Series) -> list[Any]:
    return [None if pd.isna(value) else value for value in series.tolist()]


def test_in_the_form_of_numpy_they_are_their_values() -> None:
    series = pd.Series(pd.Categorical(["b", None, "a"], categories=["b", "a", "c"]))
    rows = from_pandas(pd.DataFrame({"x": series, "k": pd.Categorical([3, 1, 3])}))
    shard = rows.shard(rank=0, world_size=1)
    for batch in (rows.to_numpy(), next(rows.iter_batches()), next(shard.iter_batches())):
        assert batch["x"].tolist() == ["b", None, "a"]
        assert batch["k"].tolist() == [3, 1, 3]
        assert all(array.dtype.metadata is None for array in batch.values())
    assert str(rows.schema()) == "x: category, k: category"


def test_what_a_function_of_numpy_arrays_changes_is_plain_values() -> None:
    rows = from_pandas(pd.DataFrame({"x": pd.Categorical(["b", "a"]), "y": pd.Categorical([2, 1])}))

    def change(batch: dict[str, Any]) -> dict[str, Any]:
        batch["x"][0] = "new"
        return {**batch, "z": batch["y"] * 2}

    frame = rows.map_batches(change).to_pandas()
    assert frame["x"].tolist() == ["new", "a"]
    assert frame["z"].tolist() == [4, 2]
    assert [isinstance(kind, pd.CategoricalDtype) for kind in frame.dtypes] == [False, True, False]
    # The dataset's own rows are as they were.
    assert rows.to_pandas()["x"].tolist() == ["b", "a"]


def test_categories_of_batches_become_one_type_or_plain_values() -> None:
    def types(batch: pd.DataFrame, *, ordered: bool) -> pd.DataFrame:
        return pd.DataFrame({"x": pd.Categorical(batch["x"], ordered=ordered)})

    rows = from_numpy({"x": np.array(["b", "a", "c", "b"], object)})
    parts = [rows.take_ranges([range(start, start + 1)]) for start in range(4)]
    for ordered, expected in ((False, ["b", "a", "c"]), (True, None)):
        options = {"batch_format": "pandas", "fn_kwargs": {"ordered": ordered}}
        each = [part.map_batches(types, **options).materialize() for part in parts]  # type: ignore[arg-type]
        joined = from_arrow(pa.concat_tables([part.to_arrow() for part in each]))
        assert joined.to_numpy()["x"].tolist() == ["b", "a", "c", "b"]
        kind = joined.to_pandas()["x"].dtype
        assert (list(kind.categories) if hasattr(kind, "categories") else None) == expected


def write(path: Path, values: list[Any], categories: list[str], *, ordered: bool = False) -> Path:
    column = pd.Categorical(values, categories=categories, ordered=ordered)
    pd.DataFrame({"x": column, "n": range(len(values))}).to_parquet(path, row_group_size=2)
    return path


def test_of_parquet_they_are_those_of_all_row_groups_and_files(tmp_path: Path) -> None:
    one = write(tmp_path / "1.parquet", ["b", "a", "b", None, "b"], ["b", "a", "unused"])
    other = write(tmp_path / "2.parquet", ["c", "a"], ["c", "a"])
    nothing = write(tmp_path / "0.parquet", [], [])
    rows = read_parquet([nothing, one, other])
    expected = ["b", "a", "unused", "c"]
    for some in (rows, pickle.loads(pickle.dumps(rows))):
        for batch in some.iter_batches(batch_size=2, batch_format="pandas"):
            assert list(batch["x"].cat.categories) == expected
    assert present(rows.to_pandas()["x"]) == ["b", "a", "b", None, "b", "c", "a"]
    again = read_parquet(rows.write_parquet(tmp_path / "again.parquet"))
    assert again.to_pandas().equals(rows.to_pandas())


def test_of_parquet_they_are_plain_where_files_do_not_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write(tmp_path / "1.parquet", ["b", "a"], ["b", "a"], ordered=True)
    other = write(tmp_path / "2.parquet", ["b", "a"], ["a", "b"], ordered=True)
    text = tmp_path / "3.parquet"
    parquet.write_table(pa.table({"x": ["b", "q"], "n": [0, 1]}), text)
    for files in ([one, other], [one, text]):
        rows = read_parquet(files)
        assert str(rows.schema()["x"]) == "object"
        assert rows.to_numpy()["x"].tolist()[:2] == ["b", "a"]
    assert str(read_parquet(one).schema()["x"]) == "category"
    monkeypatch.setattr("hpctrain.data.parquet.MOST_CATEGORIES", 1)
    assert str(read_parquet(one).schema()["x"]) == "object"


def test_a_file_with_other_categories_than_its_dataset_is_refused(tmp_path: Path) -> None:
    rows = read_parquet(write(tmp_path / "1.parquet", ["b", "a"], ["b", "a"]))
    write(tmp_path / "1.parquet", ["b", "q"], ["b", "q"])
    assert rows.to_numpy()["x"].tolist() == ["b", "q"]
    with pytest.raises(
        ConfigError, match=r"column 'x': 'q' is not one of the categories \['b', 'a'\]"
    ):
        rows.to_pandas()


def test_formats_without_categories_are_given_their_values(tmp_path: Path) -> None:
    rows = from_pandas(pd.DataFrame({"x": pd.Categorical(["b", "a"]), "k": pd.Categorical([2, 1])}))
    rows.write_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().split() == ['"x","k"', '"b",2', '"a",1']
    for again in (
        read_hdf5(rows.write_hdf5(tmp_path / "a.h5")),
        read_numpy(rows.write_numpy(tmp_path / "npz")),
    ):
        assert again.to_pandas().to_dict("list") == {"x": ["b", "a"], "k": [2, 1]}


@pytest.mark.parametrize("in_chain", [False, True])
def test_a_categorizer_gives_them_to_a_dataset(in_chain: bool) -> None:
    rows = from_numpy({"x": np.array(["b", "a", "b", "c"], object), "n": np.arange(4)})
    ordered = pd.CategoricalDtype([3, 2, 1], ordered=True)
    categorizer: Any = Categorizer(["x", "n"], dtypes={"n": ordered})
    if in_chain:
        # What comes behind is given the values.
        categorizer = Chain(
            categorizer, CustomKBinsDiscretizer(["n"], bins=[0, 2, 4], output_columns=["k"])
        )
    made = categorizer.fit(rows).transform(rows)
    for batch in made.iter_batches(batch_size=1, batch_format="pandas"):
        assert list(batch["x"].cat.categories) == ["a", "b", "c"]
        assert batch["n"].dtype == ordered
    assert made.to_pandas()["n"].isna().tolist() == [True, False, False, False]
    arrays = made.to_numpy()
    assert arrays["x"].tolist() == ["b", "a", "b", "c"]
    assert arrays["n"].tolist() == [None, 1, 2, 3]
    for array in (*arrays.values(), *categorizer.transform(rows.to_numpy()).values()):
        assert array.dtype.metadata is None
    assert pa.types.is_dictionary(made.to_arrow().schema.field("x").type)


def test_what_follows_a_categorizer_may_give_other_values() -> None:
    rows = from_numpy({"x": np.array(["b", None, "b", "c"], object)})
    chain = Chain(Categorizer(["x"]), SimpleImputer(["x"], "constant", fill_value="other"))
    made = chain.fit(rows).transform(rows)
    assert made.to_pandas()["x"].tolist() == ["b", "other", "b", "c"]
