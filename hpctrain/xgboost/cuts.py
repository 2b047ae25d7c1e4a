"""Cuts of features into bins, at quantiles over the rows of all ranks.

XGBoost's own sketch takes one value at a time, longer than everything else before the first round.
Sorting a column with NumPy's vector instructions takes a tenth of that. Each rank contributes
`_PRECISION` points per bin, as in XGBoost, so a quantile is off by at most an eighth of a bin. A
feature with at most that many values is cut as in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.world import Communicator

if TYPE_CHECKING:
    import xgboost

Array = np.ndarray[Any, Any]
Summary = tuple[Array, Array]
"""Values in order, and the number of rows that each represents."""

# Both as in XGBoost: max_bin, and WQSketch::kFactor.
_MAX_BIN = 256
_PRECISION = 8


def cut_by_quantiles(
    matrix: Array, comm: Communicator, *, max_bin: int | None, **options: Any
) -> xgboost.QuantileDMatrix:
    """Return bins for the rows of all ranks, as the ``ref`` of matrices. Collective.

    Parameters
    ----------
    matrix
        This rank's rows, shape ``(rows, features)``; NaN is missing.
    comm
        Communicator of all ranks.
    max_bin
        Most bins of a feature. None is XGBoost's default.
    **options
        Arguments of ``xgboost.QuantileDMatrix``.
    """
    max_bin = max_bin or _MAX_BIN
    summaries = [_summarize(column, max_bin=max_bin) for column in matrix.T]
    ranks = comm.gather(summaries)
    cuts = None
    if ranks is not None:
        cuts = [_merge(of_ranks, max_bin=max_bin) for of_ranks in zip(*ranks, strict=True)]
    return _with_bins(comm.bcast(cuts), max_bin=max_bin, **options)


def _summarize(column: Array, *, max_bin: int) -> Summary:
    values = np.ascontiguousarray(column)
    values = np.sort(values[np.isfinite(values)])
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]][: len(values)])
    if len(starts) > _PRECISION * max_bin:
        starts = np.linspace(0, len(values) - 1, _PRECISION * max_bin).astype(np.int64)
    return values[starts], np.diff(starts, append=len(values))


def _merge(summaries: Sequence[Summary], *, max_bin: int) -> Array:
    """Return the values at which to cut a feature, as XGBoost chooses them from summaries."""
    values, places = np.unique(
        np.concatenate([values for values, _ in summaries]), return_inverse=True
    )
    if len(values) <= max_bin + 1:
        return values
    rows = np.bincount(places, weights=np.concatenate([rows for _, rows in summaries]))
    # WQSummary::SetPrune, in its float type: the value whose rows are nearest to each wanted place.
    above = np.cumsum(rows).astype(np.float32)
    below = above - rows.astype(np.float32)
    wanted = np.arange(1, max_bin, dtype=np.float32) * (below[-1] - above[0])
    wanted = 2 * (wanted / np.float32(max_bin) + above[0])
    chosen = 1 + np.searchsorted((above + below)[2:], wanted, side="right")
    chosen = chosen[chosen < len(values) - 1]
    chosen += wanted[: len(chosen)] >= 2 * above[chosen]
    cuts: Array = values[np.unique(np.r_[0, chosen, len(values) - 1])]
    return cuts


def _with_bins(cuts: Sequence[Array], *, max_bin: int, **options: Any) -> xgboost.QuantileDMatrix:
    # XGBoost cuts a matrix of few rows at each of its values.
    from xgboost import QuantileDMatrix

    rows = np.full((max(1, *map(len, cuts)), len(cuts)), np.nan, dtype=np.float32)
    for feature, values in enumerate(cuts):
        rows[: len(values), feature] = values
    return QuantileDMatrix(rows, max_bin=max_bin, **options)
