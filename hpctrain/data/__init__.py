"""Datasets: rows of files or of memory that are shared out over the ranks.

Names are imported at first use: a rank that was given a list needs no NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.data.dataset import Dataset as Dataset
    from hpctrain.data.iterator import DataIterator as DataIterator
    from hpctrain.data.read import from_arrow as from_arrow
    from hpctrain.data.read import from_huggingface as from_huggingface
    from hpctrain.data.read import from_numpy as from_numpy
    from hpctrain.data.read import from_pandas as from_pandas
    from hpctrain.data.read import from_torch as from_torch
    from hpctrain.data.read import read_csv as read_csv
    from hpctrain.data.read import read_hdf5 as read_hdf5
    from hpctrain.data.read import read_numpy as read_numpy
    from hpctrain.data.read import read_parquet as read_parquet
    from hpctrain.data.schema import Column as Column
    from hpctrain.data.schema import Schema as Schema
    from hpctrain.data.shard import shard_dataset as shard_dataset
    from hpctrain.data.source import Source as Source

_HOME_OF = {
    "Column": "schema",
    "DataIterator": "iterator",
    "Dataset": "dataset",
    "Schema": "schema",
    "Source": "source",
    "from_arrow": "read",
    "from_numpy": "read",
    "from_pandas": "read",
    "read_hdf5": "read",
    "read_parquet": "read",
    "from_huggingface": "read",
    "from_torch": "read",
    "read_csv": "read",
    "read_numpy": "read",
    "shard_dataset": "shard",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
