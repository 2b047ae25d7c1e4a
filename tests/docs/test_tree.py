"""The page of the tree names each package, and has the layers of the contract."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/design/tree.rst").read_text()
PACKAGES = sorted(init.parent.name for init in (ROOT / "hpctrain").glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_has_a_row(package: str) -> None:
    names = re.findall(r"^ {5}(?! )(.*?)(?: {2}|$)", PAGE, flags=re.MULTILINE)
    assert f"{package}/" in re.findall(r"[\w]+/", " ".join(names))


def test_the_layers_are_those_that_are_checked() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    layers = setup["importlinter:contract:layers"]["layers"]
    # There parentheses are around modules that may be absent.
    wanted = re.sub("[()]", "", layers).split()
    listed = PAGE.partition("Import rule:")[2].partition("code-block:: text\n\n")[2]
    assert listed.partition("\n\n")[0].split() == wanted
    assert len(listed.partition("\n\n")[0].splitlines()) == len(layers.split("\n")) - 1


def test_the_root_has_no_files_of_a_try() -> None:
    """Data that somebody writes beside the code to try a reader is soon committed with it."""
    kinds = {path.suffix for path in ROOT.iterdir() if path.is_file() and path.name[0] != "."}
    assert kinds <= {"", ".cff", ".cfg", ".in", ".md", ".py", ".toml", ".txt"}
