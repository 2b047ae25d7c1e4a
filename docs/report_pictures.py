"""Draw the pictures of ``docs/report.rst``: ``python docs/report_pictures.py``. It needs Chromium.

The pages are those of a fabricated run and a fabricated sweep, so they are the same every time.
Beside the pictures are digests of the pages that they were drawn of.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))
PICTURES = DOCS / "report"
WIDTH = 1000
# Until the end of what is shown of each page.
HEIGHTS = {"run": 3100, "sweep": 1560}
SCHEMES = ("light", "dark")
HOME = "/home/ada"


def write_pages(folder: Path) -> dict[str, Path]:
    """Write the pages; return them by their names."""
    from hpctrain.run_report.facts import read_facts
    from hpctrain.run_report.page import render_page
    from hpctrain.run_report.sweep_facts import read_sweep_facts
    from hpctrain.run_report.sweep_page import render_sweep_page
    from hpctrain.tune.ledger import SweepPaths
    from tests.run_report.fabricated import write_run
    from tests.run_report.sweeps import BEGAN, make_trials, write_sweep

    paths = write_run(
        folder / "gpt-small", num_restarts=3, num_nodes=4, steps=40, is_odd=False, waits=True
    )
    trials = make_trials(60)
    for trial in trials:
        trial["config"] = {
            name: value for name, value in trial["config"].items() if not name.startswith("<")
        }
    root = write_sweep(folder / "sweep", trials)
    now = BEGAN + 86400
    pages = {
        "run": render_page([read_facts(paths)], differences={}, now=now),
        "sweep": render_sweep_page(read_sweep_facts(SweepPaths(root=root)), now=now),
    }
    written = {name: folder / f"{name}.html" for name in pages}
    for name, page in pages.items():
        shown = page.replace(str(folder), f"{HOME}/runs")
        written[name].write_text(shown, encoding="utf-8")
    return written


def draw(directory: Path) -> None:
    """Write each picture into a directory."""
    from tests.run_report.chromium import Chromium

    os.environ["TZ"] = "UTC"
    time.tzset()
    with tempfile.TemporaryDirectory() as folder:
        pages = write_pages(Path(folder))
        digests = [f"{sha256(pages[name].read_bytes()).hexdigest()}  {name}\n" for name in pages]
        (directory / "pages.sha256").write_text("".join(digests))
        browser = Chromium(Path(folder, "profile"))
        try:
            for name, page in pages.items():
                for scheme in SCHEMES:
                    browser.show(page, width=WIDTH, height=HEIGHTS[name], scheme=scheme)
                    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
                    path = directory / f"{name}-{scheme}.png"
                    browser.photograph(path, height=HEIGHTS[name])
        finally:
            browser.close()


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    draw(PICTURES)
