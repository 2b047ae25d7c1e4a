"""The pictures of the pages in the documentation are drawn by a script, and in both schemes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))


def size_of(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_the_pictures_are_those_that_the_script_draws(tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("no chromium: apt-get install chromium")
    from report_pictures import PICTURES, draw

    draw(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in PICTURES.iterdir())
    page = (DOCS / "report.rst").read_text(encoding="utf-8")
    again = "the pages have changed: python docs/report_pictures.py, and look at the pictures"
    drawn_of = "pages.sha256"
    assert (tmp_path / drawn_of).read_text() == (PICTURES / drawn_of).read_text(), again
    names.remove(drawn_of)
    for name in names:
        assert size_of(tmp_path / name) == size_of(PICTURES / name)
        assert f"report/{name}" in page
