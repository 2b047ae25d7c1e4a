"""Preprocessors that are one pickle, as Ray Train 2.0 to 2.6 writes them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import cast

from hpctrain import pickle_trust
from hpctrain.errors import CheckpointError
from hpctrain.preprocessors import storage
from hpctrain.preprocessors.preprocessor import Preprocessor


def load_pickled(path: Path, *, trusted: bool) -> Preprocessor:
    """Return the preprocessor in a file. Not collective.

    Raises
    ------
    CheckpointError
        If it is damaged, or another user may have written it and it is not trusted.
    """
    content = pickle_trust.read_pickle(
        path,
        trusted=trusted,
        what="a pickled preprocessor, as Ray Train writes it",
        argument="get_preprocessor(trusted=True)",
    )
    try:
        preprocessor = pickle.loads(content)
        storage.check_is_preprocessor(preprocessor)
    except Exception as error:  # A damaged pickle raises anything.
        raise CheckpointError(
            f"{path} holds no preprocessor that hpctrain can use: {type(error).__name__}: {error}. "
            f"Fit it again with hpctrain.preprocessors, and store it with set_preprocessor()."
        ) from error
    return cast(Preprocessor, preprocessor)
