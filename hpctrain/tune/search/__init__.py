"""Search algorithms of `hpctrain.tune`."""

from __future__ import annotations

from hpctrain.tune.search.searcher import SearchAlgorithm as SearchAlgorithm
from hpctrain.tune.search.searcher import Searcher as Searcher

__all__ = ["SearchAlgorithm", "Searcher"]
