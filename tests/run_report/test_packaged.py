"""What the page is made of is in the package, with the licence of what others wrote."""

from __future__ import annotations

import re
import zipfile
from importlib import resources
from pathlib import Path
from tarfile import TarFile

import pytest

from tests.newcomer.conftest import wheel as wheel

FILES = (
    "page.css",
    "page.html",
    "page.js",
    "uplot/LICENSE",
    "uplot/README.md",
    "uplot/uPlot.iife.min.js",
    "uplot/uPlot.min.css",
)


def test_the_wheel_and_the_source_distribution_have_all_files(wheel: Path) -> None:
    (source,) = wheel.parent.glob("hpctrain-*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, TarFile.open(source) as sources:
        in_wheel = archive.namelist()
        in_source = [name.partition("/")[2] for name in sources.getnames()]
        for name in FILES:
            assert f"hpctrain/run_report/{name}" in in_wheel
            assert f"hpctrain/run_report/{name}" in in_source
        licences = [n for n in in_wheel if ".dist-info/licenses/" in n]
        assert any(name.endswith("uplot/LICENSE") for name in licences)


@pytest.mark.parametrize("name", ["uPlot.iife.min.js"])
def test_the_version_that_is_named_is_the_one_that_is_there(name: str) -> None:
    folder = resources.files("hpctrain.run_report") / "uplot"
    named = re.match(r"uPlot (\S+),", (folder / "README.md").read_text(encoding="utf-8"))
    found = re.search(r"\(v(\S+)\)", (folder / name).read_text(encoding="utf-8")[:200])
    assert named
    assert found
    assert named[1] == found[1]
    assert "MIT License" in (folder / "LICENSE").read_text(encoding="utf-8")
