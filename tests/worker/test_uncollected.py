from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hpctrain.worker.uncollected import uncollected


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_nothing_is_collected_inside_and_afterwards_as_before(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    before = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled() == was_enabled
    assert gc.get_freeze_count() > before
