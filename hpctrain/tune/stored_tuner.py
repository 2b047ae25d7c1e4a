"""`StoredTuner`: the settings of a sweep, with which it is restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.config import RunConfig
from hpctrain.errors import ConfigError
from hpctrain.plan import spec
from hpctrain.rundir.reading import damaged
from hpctrain.tune.ledger import SweepPaths, read_pickle
from hpctrain.tune.tune_config import TuneConfig


@dataclass(frozen=True, kw_only=True)
class StoredTuner:
    """What ``tuner.pkl`` holds."""

    space: Mapping[str, Any]
    tune_config: TuneConfig
    run_config: RunConfig

    def to_bytes(self) -> bytes:
        """Return the content of ``tuner.pkl``. Not collective.

        Raises
        ------
        ConfigError
            If it cannot be pickled.
        """
        return spec.pack(self, what="param_space, TuneConfig and RunConfig")

    @staticmethod
    def from_bytes(content: bytes) -> StoredTuner:
        """Return what `to_bytes` wrote. The content is code: open only your own."""
        stored = spec.unpack(content)
        assert isinstance(stored, StoredTuner)
        return stored

    @staticmethod
    def read(paths: SweepPaths) -> StoredTuner:
        """Return the settings of a sweep. Not collective. Opens a pickle.

        Raises
        ------
        ConfigError
            If there are none, or others could have written them.
        DamagedFileError
            If they cannot be opened.
        """
        try:
            stored = read_pickle(paths.tuner)
        except FileNotFoundError as error:
            raise ConfigError(
                f"{paths.tuner} is gone, which has the settings of the sweep. Bring it back, or "
                f"begin another sweep."
            ) from error
        if not isinstance(stored, StoredTuner):
            raise damaged(paths.tuner, f"it holds a {type(stored).__name__}, and no sweep")
        return stored
