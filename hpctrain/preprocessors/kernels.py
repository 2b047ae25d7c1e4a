"""Arithmetic on the columns of a table, for fitting and scaling.

A row of few values is too short for vector instructions. So rows are laid side by side, in chunks
that stay in the cache of a core during several passes. Everything is computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpctrain.preprocessors.batches import Array

# 256 KiB of float64.
_CHUNK_VALUES = 32768
_LANE_VALUES = 1024


def sums_about(shift: Array, rows: Array, *, leave_out_nan: bool) -> tuple[Array, Array, Array]:
    """Return count, sum and sum of squares of each column's differences from a point.

    Not collective.

    Parameters
    ----------
    shift
        The point, shape ``(width,)``; near the mean, so that no digits are lost by cancellation.
    rows
        Shape ``(rows, width)``, of any type of numbers.
    leave_out_nan
        Whether to skip NaN; else NaN makes sums NaN.
    """
    num_rows, width = rows.shape
    lanes = _lanes(width)
    wide_shift = np.tile(shift, lanes)
    count = np.full(width, float(num_rows))
    total = np.zeros(lanes * width)
    squares = np.zeros(lanes * width)
    for part, chunk in _chunks(rows):
        # Pad the last lanes with the point, which adds 0.
        chunk[len(part) :] = shift
        if leave_out_nan:
            missing = np.isnan(chunk)
            count -= missing.sum(axis=0)
            np.copyto(chunk, shift, where=missing)
        wide = chunk.reshape(-1, lanes * width)
        wide -= wide_shift
        total += wide.sum(axis=0)
        np.multiply(wide, wide, out=wide)
        squares += wide.sum(axis=0)
    fold = (lanes, width)
    return count, total.reshape(fold).sum(axis=0), squares.reshape(fold).sum(axis=0)


def shifted_and_scaled(rows: Array, shift: Array, scale: Array) -> Array:
    """Return each column with a number subtracted, then divided by another.

    Not collective. Floating-point numbers keep their type; others become float64.

    Parameters
    ----------
    rows
        Shape ``(rows, width)``, of any type of numbers.
    shift, scale
        Shape ``(width,)``.
    """
    width = rows.shape[1]
    made = np.empty(rows.shape, rows.dtype if rows.dtype.kind == "f" else np.float64)
    lanes = _lanes(width)
    wide_shift, wide_scale = np.tile(shift, lanes), np.tile(scale, lanes)
    start = 0
    for part, chunk in _chunks(rows):
        chunk[len(part) :] = 0.0
        wide = chunk.reshape(-1, lanes * width)
        wide -= wide_shift
        wide /= wide_scale
        np.copyto(made[start : start + len(part)], chunk[: len(part)], casting="same_kind")
        start += len(part)
    return made


def reduced(function: np.ufunc, rows: Array) -> Array:
    """Return a function of two values, such as ``numpy.fmin``, over all rows of each column.

    Not collective.
    """
    num_rows, width = rows.shape
    lanes = _lanes(width)
    laid = num_rows // lanes * lanes
    if not laid or not rows.flags.c_contiguous:
        whole: Array = function.reduce(rows, axis=0)
        return whole
    wide = function.reduce(rows[:laid].reshape(-1, lanes * width), axis=0)
    parts = np.concatenate([wide.reshape(lanes, width), rows[laid:]])
    made: Array = function.reduce(parts, axis=0)
    return made


def _lanes(width: int) -> int:
    return max(1, _LANE_VALUES // max(width, 1))


def _chunks(rows: Array) -> Iterator[tuple[Array, Array]]:
    """Yield rows in parts, with a copy in float64 that has room for whole lanes."""
    num_rows, width = rows.shape
    lanes = _lanes(width)
    step = max(1, _CHUNK_VALUES // max(lanes * width, 1)) * lanes
    buffer = np.empty((step, width))
    for start in range(0, num_rows, step):
        part = rows[start : start + step]
        chunk = buffer[: -(-len(part) // lanes) * lanes]
        np.copyto(chunk[: len(part)], part, casting="unsafe")
        yield part, chunk
