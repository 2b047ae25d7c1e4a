"""Methods of Ray Data that hpctrain lacks, and what to use instead."""

from __future__ import annotations

from typing import Any

from hpctrain.errors import ConfigError

_OBJECTS = (
    "there is no object store. Give the dataset itself to a trainer; to_pandas(), to_numpy() and "
    "to_arrow() return all rows."
)
_PLAN = "there is no execution plan: repr(dataset) shows rows, columns and steps."
_WRITE_FILES = "write_parquet() writes a file that other tools load."

_EXPORT = "write_parquet() writes a file; load that with the tool of the target."
_NO_CLUSTER = "there is no cluster that stores datasets: pickle the dataset itself."

INSTEAD = {
    "copy": "a dataset never changes: use it as often as needed.",
    "context": "there is no cluster to configure: see ScalingConfig.",
    "explain": _PLAN,
    "get_internal_block_refs": _OBJECTS,
    "iter_internal_ref_bundles": _OBJECTS,
    "iter_jax_batches": "iter_batches() gives NumPy arrays, which jax.numpy.asarray() takes.",
    "join": "join with pandas, Polars, DuckDB or Dask (to_dask()), and write Parquet.",
    "lazy": "every dataset is lazy: leave the call out.",
    "fully_executed": "materialize() reads all rows into memory.",
    "num_blocks": "a dataset has no blocks: shard() returns the rows of a rank.",
    "quantile": "use pandas or pyarrow.compute.quantile() on to_arrow().",
    "repeat": "call iter_batches() once an epoch.",
    "stats": _PLAN,
    "summary": "to_pandas().describe() summarizes columns.",
    "to_arrow_refs": _OBJECTS,
    "to_daft": _WRITE_FILES,
    "to_mars": _WRITE_FILES,
    "to_modin": _WRITE_FILES,
    "to_numpy_refs": _OBJECTS,
    "to_pandas_refs": _OBJECTS,
    "to_random_access_dataset": "take_ranges() gives rows by number.",
    "to_spark": _WRITE_FILES,
    "window": "leave it out: rows are always read in parts.",
    "write_images": "loop over iter_rows(), and save each with Pillow.",
    "write_json": "to_pandas().to_json(path, orient='records', lines=True), or write_parquet().",
    "deserialize_lineage": _NO_CLUSTER,
    "serialize_lineage": _NO_CLUSTER,
    "has_serializable_lineage": _NO_CLUSTER,
    "get_dataset_id": _NO_CLUSTER,
    "name": "datasets have no names: a trainer takes them by name.",
    "set_name": "datasets have no names: a trainer takes them by name.",
    "get_stats_summary": _PLAN,
    "map_batches_internal": "use map_batches().",
    "mix": "use union() and random_shuffle().",
    "size_bytes": "multiply num_rows by schema().row_bytes.",
    "streaming_train_test_split": "train_test_split() reads nothing.",
    "write_datasink": "loop over iter_batches().",
    "write_orc": "pyarrow.orc.write_table(dataset.to_arrow(), path).",
    "write_bigquery": _EXPORT,
    "write_clickhouse": _EXPORT,
    "write_delta": _EXPORT,
    "write_iceberg": _EXPORT,
    "write_kafka": _EXPORT,
    "write_lance": _EXPORT,
    "write_mongo": _EXPORT,
    "write_snowflake": _EXPORT,
    "write_turbopuffer": _EXPORT,
    "write_sql": "to_pandas().to_sql(...).",
    "write_tfrecords": "write_parquet(), or tf.io.TFRecordWriter in a loop over iter_rows().",
    "write_webdataset": "write_parquet(), or webdataset's ShardWriter over iter_rows().",
}
"""What to use instead of each missing method."""


class UnavailableMethodError(ConfigError, AttributeError):
    """A Dataset lacks a method of Ray Data. Also an AttributeError."""


class Refused:
    """Names the replacement of a missing method."""

    def __getattr__(self, name: str) -> Any:
        """Raise for a missing attribute.

        Raises
        ------
        AttributeError
            For a method of Ray Data the message names what to use instead.
        """
        if name in INSTEAD:
            raise UnavailableMethodError(f"a Dataset has no {name}(): {INSTEAD[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
