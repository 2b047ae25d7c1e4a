"""Words: `Tokenizer`, and vectors of word counts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpctrain.checks import check_count
from hpctrain.data.arguments import function, one_name
from hpctrain.errors import ConfigError
from hpctrain.missing import is_missing
from hpctrain.preprocessors.batches import Array, NumpyBatch, Rows
from hpctrain.preprocessors.categories import most_frequent
from hpctrain.preprocessors.columns import ColumnPreprocessor, _PerColumn
from hpctrain.preprocessors.encoder import as_cells
from hpctrain.preprocessors.preprocessor import check_columns, no_value
from hpctrain.preprocessors.statistics import Counts, collect, named_numbers
from hpctrain.world import Communicator

Tokenize = Callable[[str], list[str]]


def split_at_spaces(value: str) -> list[str]:
    """Return the parts of a text between single spaces. Not collective."""
    return value.split(" ")


def place_of(value: object, num_features: int) -> int:
    """Return the index of a value in a hashed vector, the same as Ray's. Not collective."""
    digest = hashlib.sha256(str(value).encode()).hexdigest()
    return int(digest, 16) % num_features


class _OfText(_PerColumn):
    def __init__(
        self,
        columns: list[str],
        tokenization_fn: Tokenize | None,
        output_columns: list[str] | None,
    ) -> None:
        self._take_columns(columns, output_columns)
        if tokenization_fn is not None:
            function("tokenization_fn", tokenization_fn, example="a function of a text")
        self.tokenization_fn = tokenization_fn

    def _tokens(self, column: str, values: Array) -> list[list[str]]:
        split = self.tokenization_fn or split_at_spaces
        texts = values.tolist()
        for text in texts:
            if not isinstance(text, str) and not is_missing(text):
                raise ConfigError(
                    f"column {column!r} holds {text!r}, a {type(text).__name__}, but must hold "
                    f"texts. Convert it to text first, for example with a BatchMapper."
                )
        return [[] if is_missing(text) else list(split(text)) for text in texts]


class Tokenizer(_OfText):
    """Splits texts into lists of words.

    Parameters
    ----------
    columns
        Columns of texts. A missing text becomes an empty list.
    tokenization_fn
        Returns the words of a text; by default the text is split at single spaces.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        tokenization_fn: Tokenize | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, tokenization_fn, output_columns)

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        return {
            output: as_cells(self._tokens(name, columns[name])) for name, output in self._names()
        }


class HashingVectorizer(_OfText):
    """Replaces each text by a vector of word counts, at the indices of the words' hashes.

    The hash is SHA-256, as in Ray, so words have the same indices.

    Parameters
    ----------
    columns
        Columns of texts.
    num_features
        Length of the vectors. In longer vectors fewer words share an index.
    tokenization_fn
        Returns the words of a text; by default the text is split at single spaces.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    _is_fittable = False
    # Version 1 hashed with SHA-1.
    _version = 2

    def __init__(
        self,
        columns: list[str],
        num_features: int,
        tokenization_fn: Tokenize | None = None,
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        check_count("num_features", num_features, at_least=1)
        super().__init__(columns, tokenization_fn, output_columns)
        self.num_features = num_features

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        outputs = {}
        for name, output in self._names():
            tokens = self._tokens(name, columns[name])
            places = {t: place_of(t, self.num_features) for t in {t for row in tokens for t in row}}
            outputs[output] = _counted(tokens, places, self.num_features)
        return outputs


class CountVectorizer(_OfText):
    """Replaces each text by a vector of counts of the words of the training data.

    Parameters
    ----------
    columns
        Columns of texts.
    tokenization_fn
        Returns the words of a text; by default the text is split at single spaces.
    max_features
        Most words of a column to count: the most frequent ones. None is all.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    def __init__(
        self,
        columns: list[str],
        tokenization_fn: Tokenize | None = None,
        max_features: int | None = None,
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        check_count("max_features", max_features, at_least=1, optional=True)
        super().__init__(columns, tokenization_fn, output_columns)
        self.max_features = max_features

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        def words(column: str, values: Array) -> Counter[Any]:
            return Counter(token for row in self._tokens(column, values) for token in row)

        make = {column: partial(Counts, partial(words, column)) for column in self.columns}
        found = collect(rows, make, comm)
        stats = {}
        for column, counts in found.items():
            if not counts.counts:
                raise no_value(column)
            kept = most_frequent(counts.counts, self.max_features)
            stats[f"token_counts({column})"] = {word: counts.counts[word] for word in kept}
        return stats

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        outputs = {}
        for name, output in self._names():
            words = self._stats[f"token_counts({name})"]
            places = {word: place for place, word in enumerate(words)}
            outputs[output] = _counted(self._tokens(name, columns[name]), places, len(places))
        return outputs


class FeatureHasher(ColumnPreprocessor):
    """Makes a vector from several columns: each is added at the index of its name's hash.

    It is meant for many columns of word counts. The hash is SHA-256, as in Ray, so columns have the
    same indices.

    Parameters
    ----------
    columns
        Columns of numbers. They are kept.
    num_features
        Length of the vectors. In longer vectors fewer columns share an index.
    output_column
        Name of the column of vectors.
    """

    _is_fittable = False
    # Version 1 hashed with SHA-1.
    _version = 2

    def __init__(self, columns: list[str], num_features: int, output_column: str) -> None:
        check_count("num_features", num_features, at_least=1)
        self.columns = check_columns(columns)
        self.num_features = num_features
        self.output_column = one_name("output_column", output_column)

    def get_output_columns(self) -> list[str]:
        """Return the column of vectors. Not collective."""
        return [self.output_column]

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        vectors = np.zeros((len(next(iter(columns.values()))), self.num_features))
        for name, values in columns.items():
            if values.ndim > 1:
                raise ConfigError(
                    f"column {name!r} holds arrays of shape {values.shape[1:]}. Give FeatureHasher "
                    f"columns of single numbers."
                )
            vectors[:, place_of(name, self.num_features)] += named_numbers(name, values)[:, 0]
        return {self.output_column: vectors}


def _counted(tokens: Sequence[Sequence[str]], places: Mapping[str, int], length: int) -> Array:
    counts = np.zeros((len(tokens), length), dtype=np.int64)
    for row, words in enumerate(tokens):
        for word, times in Counter(words).items():
            if word in places:
                counts[row, places[word]] += times
    return counts
