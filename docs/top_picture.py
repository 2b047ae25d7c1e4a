"""Draw ``docs/top.svg``, what ``hpctrain top`` shows: ``python docs/top_picture.py``."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))
SIZE = (100, 38)


def draw() -> str:
    """Return the picture."""
    from hpctrain.cli.top_app import TopApp
    from tests.cli.live_views import large_view

    app = TopApp(lambda: [large_view()], is_one=True)

    async def take() -> str:
        async with app.run_test(size=SIZE) as pilot:
            while not app.views:
                await pilot.pause(0.02)
            await pilot.pause()
            return app.export_screenshot()

    # Without the fonts, which a reader's browser would load from elsewhere.
    svg = re.sub(r"@font-face \{.*?\}", "", asyncio.run(take()), flags=re.DOTALL)
    return re.sub(r"terminal-[\w-]*?(\d+|(?=-))", "top", svg).rstrip() + "\n"


def text_of(svg: str) -> list[str]:
    """Return what is written in a picture, word by word."""
    found = re.findall(r"<text [^>]*>([^<]*)</text>", svg)
    return " ".join(found).replace("&#160;", " ").split()


if __name__ == "__main__":
    (DOCS / "top.svg").write_text(draw(), encoding="utf-8")
