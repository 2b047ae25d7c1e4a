"""The functions that make datasets of JSON, text, images and files as they are."""

from __future__ import annotations

from typing import Any

from hpctrain.checks import check_text
from hpctrain.data.arguments import flag
from hpctrain.data.dataset import Dataset
from hpctrain.data.documents import LoadJson, LoadText, open_documents
from hpctrain.data.files import Paths
from hpctrain.data.files_as_rows import open_binary_files, open_images
from hpctrain.data.operations.scheduling import OF_READS, say_no_meaning

_ENDINGS = [
    f".{kind}{packed}"
    for kind in ("json", "jsonl", "ndjson")
    for packed in ("", ".gz", ".br", ".zst", ".lz4")
]


def read_json(
    paths: Paths,
    *,
    lines: bool | None = None,
    **scheduling: Any,
) -> Dataset:
    """Return a dataset of JSON files: one object per line, or one list of objects.

    Not collective. Each file is read now, to count its rows and find its types, and can only be
    read whole: many files of some MiB split better over ranks than a large one, and Parquet splits
    better than JSON. An empty file has no rows, as in Ray Data.

    Parameters
    ----------
    paths
        A file, a directory, a pattern, or a list of these. A directory stands for its files that
        end with ``.json``, ``.jsonl`` or ``.ndjson``, compressed or not.
    lines
        Accepted, without effect: hpctrain detects the form of each file.
    **scheduling
        As in `hpctrain.data.read_parquet`.

    Raises
    ------
    ConfigError
        If a file is missing or is not JSON, or a column has incompatible types.
    """
    say_no_meaning("read_json()", scheduling, OF_READS)
    return Dataset(open_documents(paths, _ENDINGS, LoadJson()))


def read_text(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    drop_empty_lines: bool = True,
    **scheduling: Any,
) -> Dataset:
    """Return a dataset of lines of text, in the column ``text``.

    Not collective. Each file is read now, to count lines, and can only be read whole.

    Parameters
    ----------
    paths
        A file, a directory, a pattern, or a list of these.
    encoding
        Encoding of the files.
    drop_empty_lines
        Whether to leave out lines that are empty or blank.
    **scheduling
        As in `hpctrain.data.read_parquet`.

    Raises
    ------
    ConfigError
        If a file is missing, or has another encoding.
    """
    say_no_meaning("read_text()", scheduling, OF_READS)
    check_text("encoding", encoding)
    return Dataset(
        open_documents(paths, [""], LoadText(encoding, flag("drop_empty_lines", drop_empty_lines)))
    )


def read_images(
    paths: Paths,
    *,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
    **scheduling: Any,
) -> Dataset:
    """Return a dataset of images, the column ``image``: arrays of height, width and channels.

    Not collective. The headers of all files are read now. Images of different sizes are objects,
    which cannot become tensors: give a `size`, or resize them in `Dataset.map`. Pillow decodes
    them.

    Parameters
    ----------
    paths
        A file, a directory, a pattern, or a list of these.
    size
        Height and width to resize all images to.
    mode
        Pillow's mode to convert all images to, such as "RGB".
    include_paths
        Whether to add a column ``path``.
    **scheduling
        As in `hpctrain.data.read_parquet`.

    Raises
    ------
    ConfigError
        If a file is missing or is not an image.
    """
    say_no_meaning("read_images()", scheduling, OF_READS)
    return Dataset(open_images(paths, size=size, mode=mode, include_paths=include_paths))


def read_binary_files(
    paths: Paths,
    *,
    include_paths: bool = False,
    **scheduling: Any,
) -> Dataset:
    """Return a dataset of whole files, a row each, in the column ``bytes``.

    Not collective. Nothing is read now.

    Parameters
    ----------
    paths
        A file, a directory, a pattern, or a list of these.
    include_paths
        Whether to add a column ``path``.
    **scheduling
        As in `hpctrain.data.read_parquet`.

    Raises
    ------
    ConfigError
        If there is no file.
    """
    say_no_meaning("read_binary_files()", scheduling, OF_READS)
    return Dataset(open_binary_files(paths, include_paths=include_paths))
