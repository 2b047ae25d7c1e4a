from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import hpctrain

ROOT = Path(hpctrain.__file__).parent
MODULES = sorted(
    ".".join(("hpctrain", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str):
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0
