"""The table of the page on waiting jobs, from ``hpctrain.slurm.waiting``."""

from __future__ import annotations

from hpctrain.slurm.waiting import REASONS

_VERDICTS = {
    "waits": "starts by itself",
    "held": "release it",
    "admin": "the site has to act",
    "never": "never starts",
}
_HEAD = ".. list-table::\n   :header-rows: 1\n   :widths: 34 16 50\n\n"


def render_reasons() -> str:
    """Return the table of Slurm's reasons, verdicts and meanings."""
    rows = [("Slurm's reason, or its beginning", "verdict", "what it means")]
    rows += [
        (
            ", ".join(f"``{name}``" for name in row.examples),
            _VERDICTS[row.verdict.value],
            row.meaning,
        )
        for row in REASONS
    ]
    lines = [_HEAD]
    for row in rows:
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}\n" for i, cell in enumerate(row)]
    return "".join(lines)
