"""`normalize_pandas_for_lightgbm`: frames of Arrow types, for ``lightgbm.Dataset``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


def normalize_pandas_for_lightgbm(df: pandas.DataFrame) -> pandas.DataFrame:
    """Return a frame with pandas' types in place of Arrow's types of numbers and booleans.

    Not collective. ``lightgbm.Dataset`` does not accept Arrow types. Other columns are unchanged.
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
