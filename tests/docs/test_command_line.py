"""The page of the command line has every verb, and every variable that hpctrain reads."""

from __future__ import annotations

import re
from pathlib import Path

from hpctrain.cli.verbs import VERBS

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs/command-line.rst").read_text()


def test_the_table_has_every_verb() -> None:
    in_table = re.findall(r"^   \* - ``(\w+)", PAGE, flags=re.MULTILINE)
    assert set(in_table) == set(VERBS)


def test_the_page_names_every_variable_that_the_package_does() -> None:
    modules = (CHECKOUT / "hpctrain").rglob("*.py")
    written = {
        name for path in modules for name in re.findall(r'"(HPCTRAIN_[A-Z_]+)"', path.read_text())
    }
    # A prefix; and of the tests of this project alone.
    written -= {"HPCTRAIN_", "HPCTRAIN_REQUIRE_ALL"}
    assert "HPCTRAIN_LAUNCHER" in written
    assert written == set(re.findall(r"\bHPCTRAIN_[A-Z_]*[A-Z]\b", PAGE))
