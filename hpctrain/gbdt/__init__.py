"""What `hpctrain.xgboost` and `hpctrain.lightgbm` share: boosting rounds over datasets.

Importing this loads neither of the libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.gbdt.boosting import EarlyStopping as EarlyStopping
    from hpctrain.gbdt.features import Features as Features
    from hpctrain.gbdt.trainer import GBDTTrainer as GBDTTrainer

_HOME_OF = {
    "EarlyStopping": "boosting",
    "Features": "features",
    "GBDTTrainer": "trainer",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
