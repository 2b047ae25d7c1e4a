from __future__ import annotations

import pytest

from hpctrain.rundir.manifest import Manifest


@pytest.fixture
def manifest() -> Manifest:
    """Return that of the checkpoint of report 3 in attempt 2, which is to be validated."""
    return Manifest(
        name="000003",
        report=3,
        attempt=2,
        world_size=1,
        metrics={},
        files=(),
        created_at=5.0,
        versions={},
        validation={"fn_kwargs": {}, "timeout_s": None},
    )
