"""`SklearnPreprocessor`: any transformer of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpctrain.data.arguments import one_name
from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import Array, NumpyBatch, Rows, flat_rows
from hpctrain.preprocessors.columns import ColumnPreprocessor
from hpctrain.preprocessors.preprocessor import check_columns
from hpctrain.world import Communicator


class SklearnPreprocessor(ColumnPreprocessor):
    """Fits and applies a transformer of scikit-learn, on columns side by side.

    A transformer with ``partial_fit`` is fitted on the rows of one rank after the other, batch by
    batch: nothing is gathered, and more ranks do not make it faster. For any other transformer
    rank 0 gathers the columns of all ranks, and its memory must hold them.

    Parameters
    ----------
    transformer
        An object with ``fit`` and ``transform``. It is copied and stays unfitted.
    columns
        Columns that together form a row, in this order; arrays are flattened.
    output_column
        Name of one result column of vectors; by default `columns` are replaced, which needs as many
        results as inputs.
    label_column
        Passed to ``fit`` as ``y``, for transformers that learn from labels.
    """

    def __init__(
        self,
        transformer: Any,
        columns: list[str],
        *,
        output_column: str | None = None,
        label_column: str | None = None,
    ) -> None:
        is_class = isinstance(transformer, type)
        if is_class or not (hasattr(transformer, "fit") and hasattr(transformer, "transform")):
            raise ConfigError(
                f"transformer={transformer!r} has no fit() and transform(). Give an object of a "
                f"class of scikit-learn, such as QuantileTransformer()."
            )
        self.transformer = transformer
        self.columns = check_columns(columns)
        for what, name in (("output_column", output_column), ("label_column", label_column)):
            if name is not None:
                one_name(what, name)
        self.output_column = output_column
        self.label_column = label_column

    def get_output_columns(self) -> list[str]:
        """Return the output column, or the input columns. Not collective."""
        return self.columns if self.output_column is None else [self.output_column]

    def _columns_to_read(self) -> list[str]:
        return [*self.columns, *([self.label_column] if self.label_column else [])]

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        from sklearn.base import clone

        model = clone(self.transformer)
        fit = self._fit_in_turns if hasattr(model, "partial_fit") else self._fit_gathered
        return {"transformer": fit(model, rows, comm)}

    def _fit_in_turns(self, model: Any, rows: Rows, comm: Communicator) -> Any:
        def see_mine() -> Any:
            for batch in rows():
                inputs, labels = self._inputs(batch)
                if len(inputs):
                    model.partial_fit(inputs, *labels)
            return model

        for rank in range(comm.size):
            model = _on(rank, see_mine, comm)
        return model

    def _fit_gathered(self, model: Any, rows: Rows, comm: Communicator) -> Any:
        own: Exception | None = None
        parts = []
        try:
            parts = [part for part in map(self._inputs, rows()) if len(part[0])]
        except Exception as error:
            own = error
        gathered = comm.gather((parts, None if own is None else str(own))) or []

        def fit() -> Any:
            if own is not None:
                raise own
            for rank, (_, said) in enumerate(gathered):
                if said is not None:
                    raise ConfigError(f"on rank {rank}: {said}")
            every = [part for of_rank, _ in gathered for part in of_rank]
            if not every:
                raise ConfigError(
                    f"columns {self.columns} have no rows on any rank, so nothing can be learned. "
                    f"Check whether the dataset is empty."
                )
            inputs = np.concatenate([inputs for inputs, _ in every])
            labels = [np.concatenate([y[0] for _, y in every])] if self.label_column else []
            return model.fit(inputs, *labels)

        return _on(0, fit, comm)

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        inputs, _ = self._inputs(columns, with_labels=False)
        if not len(inputs):
            result = inputs if self.output_column is None else self._result_of_none(inputs)
        else:
            result = _dense(self._stats["transformer"].transform(inputs))
        if self.output_column is not None:
            return {self.output_column: result}
        if result.shape != inputs.shape:
            raise ConfigError(
                f"{type(self.transformer).__name__} returns {result.shape[1]} values per row for "
                f"the {inputs.shape[1]} of columns {self.columns}, so it cannot replace these. "
                f"Name a result column with output_column=."
            )
        outputs, start = {}, 0
        for name in self.columns:
            shape = columns[name].shape
            width = int(np.prod(shape[1:], dtype=np.int64))
            outputs[name] = result[:, start : start + width].reshape(shape)
            start += width
        return outputs

    def _inputs(self, batch: NumpyBatch, with_labels: bool = True) -> tuple[Array, list[Array]]:
        parts = [flat_rows(batch[name]) for name in self.columns]
        kinds = {part.dtype.kind in "biuf" for part in parts}
        dtype = None if kinds == {True} else object
        labels = [batch[self.label_column]] if with_labels and self.label_column else []
        return np.concatenate(parts, axis=1, dtype=dtype), labels

    def _result_of_none(self, inputs: Array) -> Array:
        # scikit-learn raises for a batch without rows.
        model = self._stats["transformer"]
        names = getattr(model, "get_feature_names_out", None)
        width = len(names()) if names is not None else inputs.shape[1]
        return np.zeros((0, width))


def _on(rank: int, work: Callable[[], Any], comm: Communicator) -> Any:
    """Return the result of `work` on one rank on every rank, or raise its error. Collective."""
    made, error = None, None
    if comm.rank == rank:
        try:
            made = work()
        except Exception as caught:
            error = caught
    made, said = comm.bcast((made, None if error is None else f"{error}"), root=rank)
    if error is not None:
        raise error
    if said is not None:
        raise ConfigError(f"on rank {rank}: {said}")
    return made


def _dense(result: Any) -> Array:
    if hasattr(result, "toarray"):
        result = result.toarray()
    return flat_rows(np.asarray(result))
