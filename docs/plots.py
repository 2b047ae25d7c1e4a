"""The plots of the page on benchmarks, drawn from ``benchmarks/results`` when it is built."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
OURS, PEER, INK, FADED = "#2f7ed8", "#c5ced6", "#1f2933", "#52606d"
BAR, GAP, NAMES, WIDTH = 18, 34, 300, 900

# Of each plot the file, and a pattern of how the names of its rows begin.
PLOTS = {
    "start": ("spine.json", "empty-run|submit|import$"),
    "checkpoints": ("checkpoints_xeon.json", "save|resume|async: steps"),
    "ingest": ("ingest.json", ""),
    "trees": ("trees.json", ""),
    "preprocessors": ("preprocessors.json", ""),
    "predict": ("predict.json", "mlp 25M|xgboost 65M|lightgbm 19M"),
    "against-ray": ("against_ray.json", ""),
    "against-ray-data": ("against_ray_data.json", ""),
    "top": ("top.json", ""),
    "restart": ("resilience.json", "restart|late|torch|growth|trial"),
}
# What arms are called in the results, and on the page.
ARMS = {
    "raw, best": "the disk alone",
    "best": "the disk alone",
    "copy in memory": "a copy in memory",
    "one copy": "one copy of the state",
    "ours, SYNC": "hpctrain, SYNC",
}
ARMS |= {limit: f"the goal, {limit}" for limit in ("5 ms", "100 ms")}
ARMS |= dict.fromkeys(("ours", "plain", "of 4"), "hpctrain")
LEFT_OUT = ("raw:", "bare:", "start + half", "hpctrain verbose")


def medians(row: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the arms of a row with the medians of their seconds, ours first."""
    arms = {
        name: median(times)
        for name, samples in row["samples"].items()
        if (times := [s["wall_s"] for s in samples if s["wall_s"]])
        and not name.startswith(LEFT_OUT)
    }
    ours = row["ours"]
    return [(ours, arms.pop(ours)), *sorted(arms.items(), key=lambda arm: arm[1])]


def draw_bars(rows: list[dict[str, Any]]) -> str:
    """Return an SVG with a group of bars for each row: seconds, and how many times ours."""
    parts, y = [], 10
    for row in rows:
        arms = medians(row)
        if len(arms) < 2:
            continue
        longest, own = max(seconds for _, seconds in arms), arms[0][1]
        parts.append(_text(8, y + 14, row["name"], weight=600))
        y += 24
        for number, (name, seconds) in enumerate(arms):
            length = max(1, round((WIDTH - NAMES - 170) * seconds / longest))
            fill = PEER if number else OURS
            ratio = f", {seconds / own:.2f}x" if number else ""
            shown = ARMS.get(name, name.removeprefix("torch:plain:"))
            parts.append(_text(NAMES - 8, y + 13, shown, anchor="end", color=FADED))
            parts.append(
                f'<rect x="{NAMES}" y="{y}" width="{length}" height="{BAR - 4}" fill="{fill}"/>'
            )
            parts.append(_text(NAMES + length + 6, y + 12, f"{seconds:.3g} s{ratio}"))
            y += BAR
        y += GAP - BAR
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" '
            'font-family="system-ui, sans-serif" font-size="13">',
            f'<rect width="{WIDTH}" height="{y}" rx="10" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _text(
    x: int, y: int, text: str, *, anchor: str = "start", weight: int = 400, color: str = INK
) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{color}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )


def counted_table() -> str:
    """Return the rows of ``site_cost.json`` as a table in reStructuredText."""
    rows = json.loads((RESULTS / "site_cost.json").read_text())["rows"]
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 70 15 15", ""]
    lines += ["   * - what", "     - measured", "     - goal"]
    for row in rows:
        goal = "" if row["goal"] is None else f"{row['goal']:g}"
        lines += [f"   * - {row['name']}", f"     - {row['measured']:.3g}", f"     - {goal}"]
    return "\n".join(lines) + "\n"


def draw(directory: Path) -> None:
    """Write every plot, and the table, into a directory."""
    for name, (file, wanted) in PLOTS.items():
        rows = json.loads((RESULTS / file).read_text())["rows"]
        chosen = [row for row in rows if re.match(wanted, row["name"])]
        (directory / f"bench-{name}.svg").write_text(draw_bars(chosen))
    (directory / "site-cost.txt").write_text(counted_table())
