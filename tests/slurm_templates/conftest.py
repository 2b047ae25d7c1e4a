"""Golden files: what a translation gave when somebody last looked at it and found it good.

``HPCTRAIN_UPDATE_GOLDEN=1 pytest tests/plan tests/slurm_templates`` writes them again; read the
difference before you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the golden file of a name."""
    folder = request.path.parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / name
        if os.environ.get("HPCTRAIN_UPDATE_GOLDEN") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no {path}: HPCTRAIN_UPDATE_GOLDEN=1 pytest {request.path}"
        assert text == path.read_text(encoding="utf-8")

    return compare
