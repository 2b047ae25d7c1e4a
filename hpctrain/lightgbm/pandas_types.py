"""`normalize_pandas_for_lightgbm`: frames whose columns are Arrow's, for LightGBM's own Dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


def normalize_pandas_for_lightgbm(df: pandas.DataFrame) -> pandas.DataFrame:
    """Return a frame with pandas' own types for numbers and booleans of Arrow's types.

    Not collective. ``lightgbm.Dataset`` refuses Arrow's. Other columns stay as they are.
    """
    import pandas

    return df.astype(
        {
            name: dtype.numpy_dtype.name.capitalize().replace("Uint", "UInt")
            if dtype.kind in "iuf"
            else "boolean"
            for name, dtype in df.dtypes.items()
            if isinstance(dtype, pandas.ArrowDtype) and dtype.kind in "iufb"
        }
    )
