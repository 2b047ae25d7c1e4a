"""Search algorithms of `hpctrain.tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.tune.search.searcher import SearchAlgorithm as SearchAlgorithm
    from hpctrain.tune.search.searcher import Searcher as Searcher

_HOME_OF = {"SearchAlgorithm": "searcher", "Searcher": "searcher"}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
