"""Pages as a browser lays them out: nothing in red, and nothing wider than the window."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.rundir.html import render_run

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
PAGES = sorted(path.stem for path in DOCS.glob("*.rst"))
WIDTHS = [1280, 400]

# Frames have the widths: a window of Chromium is never narrower than 500 pixels.
MEASURE = """
addEventListener("load", () => {
  const seen = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument;
    const red = [...page.querySelectorAll(".problematic, .system-message, .error")];
    const broken = [...page.images].filter(image => !image.naturalWidth);
    const root = page.documentElement;
    return {page: frame.id, title: page.title, red: red.map(box => box.textContent),
            broken: broken.map(image => image.src), too_wide: root.scrollWidth - root.clientWidth};
  });
  document.body.textContent = JSON.stringify(seen);
});
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``nox -s docs`` has built, if it is up to date; else the pages without the reference."""
    newest = max(path.stat().st_mtime for path in DOCS.glob("*.rst"))
    ready = DOCS / "_build" / "html"
    if (ready / "index.html").exists() and (ready / "index.html").stat().st_mtime > newest:
        return ready
    pytest.importorskip("furo")
    target = tmp_path_factory.mktemp("html")
    quick = [
        "-D",
        "exclude_patterns=_build,generated,reference.rst",
        "-D",
        "autosummary_generate=0",
    ]
    build = [sys.executable, "-m", "sphinx", "-Q", *quick, DOCS, target]
    subprocess.run(build, check=True, timeout=280)
    return target


def lay_out(pages: list[Path], directory: Path) -> list[dict[str, object]]:
    """Return what Chromium finds in pages, each at every width."""
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no chromium: apt-get install chromium")
    frames = "".join(
        f'<iframe id="{page.stem} at {width}" width={width} src="{page.as_uri()}"></iframe>'
        for page in pages
        for width in WIDTHS
    )
    wrapper = directory / "frames.html"
    wrapper.write_text(f"<body>{frames}<script>{MEASURE}</script></body>")
    # Root, as in CI, has no sandbox; a file may look into another one.
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    options += [f"--user-data-dir={directory}/profile", "--window-size=1400,1000", "--dump-dom"]
    shown = subprocess.run(
        [chromium, *options, wrapper.as_uri()], capture_output=True, text=True, timeout=120
    )
    found = re.search(r"<body>(\[.*\])</body>", shown.stdout, re.DOTALL)
    assert found, shown.stdout[-1000:] + shown.stderr[-1000:]
    seen: list[dict[str, object]] = json.loads(html.unescape(found[1]))
    return seen


def test_pages_have_no_errors_and_fit_into_the_window(built: Path, tmp_path: Path) -> None:
    pages = [path for page in PAGES if (path := built / f"{page}.html").exists()]
    assert set(PAGES) - {path.stem for path in pages} <= {"reference"}
    seen = lay_out(pages, tmp_path)
    assert len(seen) == len(pages) * len(WIDTHS)
    for frame in seen:
        assert frame["title"], frame
        assert (frame["red"], frame["broken"], frame["too_wide"]) == ([], [], 0), frame


def test_a_run_in_a_notebook_fits_into_the_window(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    long = "/scratch/" + 30 * "a-long-name/"
    run = render_run(
        name="r" * 128,
        state="failed",
        facts={"path": long},
        history=[{f"validation/{'m' * 80}{n}": n * k for n in range(6)} for k in range(9)],
        error=f"rank 1 of 2 failed: {long}\n  Log: {long}\n" + 200 * "x",
    )
    page.write_text(f"<title>run</title>{run}")
    assert [frame["too_wide"] for frame in lay_out([page], tmp_path)] == [0, 0]


def test_what_is_wrong_with_a_page_is_found(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<title>bad</title><div class='system-message'>oops</div><img src='none.svg'>"
        "<div style='width: 500px'>wide</div>"
    )
    wide, narrow = lay_out([page], tmp_path)
    assert wide["red"] == narrow["red"] == ["oops"]
    assert len(wide["broken"]) == 1  # type: ignore[arg-type]
    assert wide["too_wide"] == 0
    assert narrow["too_wide"] > 0  # type: ignore[operator]
