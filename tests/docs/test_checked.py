"""The page of what is checked against what has the tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/checked.rst").read_text()


def functions_of(path: Path) -> set[str]:
    """Return the names of a module's tests."""
    tree = ast.parse(path.read_text())
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def test_every_test_on_the_page_exists():
    named = set(re.findall(r"``(test_\w+)``", PAGE))
    modules = [ROOT / name for name in re.findall(r"``(tests/[\w/]+\.py)``", PAGE)]
    assert named
    assert named <= set.union(*map(functions_of, modules))


def test_every_module_of_properties_is_on_the_page():
    modules = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").glob("*/test_*.py")
        if "each_example" in path.read_text() and path != Path(__file__)
    }
    assert modules
    assert modules <= set(re.findall(r"``(tests/\w+/\w+\.py)``", PAGE)), "add a row to checked.rst"
