"""Writers of the rows of a dataset."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from hpctrain.data.operations.consumed import Consumed


class Written(Consumed):
    """Methods that write a dataset."""

    def write_parquet(self, path: str | PathLike[str], *, compression: str = "zstd") -> Path:
        """Write the rows to a Parquet file, batch by batch.

        Not collective. The file appears when it is complete, as with all writers.

        Parameters
        ----------
        path
            A file that does not exist, ending with ``.parquet``.
        compression
            One of Parquet's, or "none".

        Raises
        ------
        ConfigError
            If the path has another ending, or exists; before anything is read.
        """
        from hpctrain.data.write import write_parquet

        return write_parquet(self, path, compression=compression)

    def write_hdf5(
        self, path: str | PathLike[str], *, compression: str | None = None, group: str = "/"
    ) -> Path:
        """Write the rows to an HDF5 file, a dataset for each column.

        Not collective.

        Parameters
        ----------
        path
            A file that does not exist, ending with ``.h5`` or ``.hdf5``.
        compression
            "gzip" or "lzf"; None writes uncompressed rows, which are read fastest.
        group
            Where in the file the datasets are.

        Raises
        ------
        ConfigError
            If the path has another ending, or exists; before anything is read.
        """
        from hpctrain.data.write import write_hdf5

        return write_hdf5(self, path, compression=compression, group=group)

    def write_csv(self, path: str | PathLike[str]) -> Path:
        """Write the rows to a CSV file.

        Not collective.

        Parameters
        ----------
        path
            A file that does not exist, ending with ``.csv``.

        Raises
        ------
        ConfigError
            If the path has another ending, or exists, or a row of a column is an array.
        """
        from hpctrain.data.write import write_csv

        return write_csv(self, path)

    def write_numpy(self, path: str | PathLike[str]) -> Path:
        """Write the rows to a directory of ``.npz`` files, for `read_numpy`.

        Not collective.

        Parameters
        ----------
        path
            A directory that does not exist.

        Raises
        ------
        ConfigError
            If it exists, or a column has no numbers.
        """
        from hpctrain.data.write import write_numpy

        return write_numpy(self, path)
