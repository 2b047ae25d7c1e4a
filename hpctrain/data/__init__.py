"""Datasets: rows of files or of memory that are shared out over the ranks.

Names are imported at first use: a rank that was given a list needs no NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.data.created import from_items as from_items
    from hpctrain.data.created import range as range
    from hpctrain.data.created import range_tensor as range_tensor
    from hpctrain.data.dataset import Dataset as Dataset
    from hpctrain.data.iterator import DataIterator as DataIterator
    from hpctrain.data.operations.scheduling import ActorPoolStrategy as ActorPoolStrategy
    from hpctrain.data.operations.scheduling import TaskPoolStrategy as TaskPoolStrategy
    from hpctrain.data.read import from_arrow as from_arrow
    from hpctrain.data.read import from_dask as from_dask
    from hpctrain.data.read import from_huggingface as from_huggingface
    from hpctrain.data.read import from_numpy as from_numpy
    from hpctrain.data.read import from_pandas as from_pandas
    from hpctrain.data.read import from_torch as from_torch
    from hpctrain.data.read import read_csv as read_csv
    from hpctrain.data.read import read_hdf5 as read_hdf5
    from hpctrain.data.read import read_numpy as read_numpy
    from hpctrain.data.read import read_parquet as read_parquet
    from hpctrain.data.read_documents import read_binary_files as read_binary_files
    from hpctrain.data.read_documents import read_images as read_images
    from hpctrain.data.read_documents import read_json as read_json
    from hpctrain.data.read_documents import read_text as read_text
    from hpctrain.data.schema import Column as Column
    from hpctrain.data.schema import Schema as Schema
    from hpctrain.data.shard import shard_dataset as shard_dataset
    from hpctrain.data.source import Source as Source

_HOME_OF = {
    "ActorPoolStrategy": "operations.scheduling",
    "Column": "schema",
    "DataIterator": "iterator",
    "Dataset": "dataset",
    "Schema": "schema",
    "Source": "source",
    "TaskPoolStrategy": "operations.scheduling",
    "from_arrow": "read",
    "from_dask": "read",
    "from_items": "created",
    "range": "created",
    "range_tensor": "created",
    "from_numpy": "read",
    "from_pandas": "read",
    "read_hdf5": "read",
    "read_parquet": "read",
    "read_text": "read_documents",
    "read_json": "read_documents",
    "read_images": "read_documents",
    "read_binary_files": "read_documents",
    "from_huggingface": "read",
    "from_torch": "read",
    "read_csv": "read",
    "read_numpy": "read",
    "shard_dataset": "shard",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
