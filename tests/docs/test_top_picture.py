"""The picture of ``hpctrain top`` in the documentation is what it shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))


def test_the_picture_shows_what_the_page_shows() -> None:
    pytest.importorskip("textual")
    from top_picture import draw, text_of

    stored = (DOCS / "top.svg").read_text(encoding="utf-8")
    words = text_of(stored)
    assert "997" in words
    assert "gpu124" in words
    # Draw it again: python docs/top_picture.py
    assert text_of(draw()) == words


def test_the_picture_loads_nothing_from_elsewhere() -> None:
    stored = (DOCS / "top.svg").read_text(encoding="utf-8")
    for word in ("@font-face", "url(http", "href=", "<script"):
        assert word not in stored
