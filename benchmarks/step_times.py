"""Draw how long steps take, with a save of the state and without: ``docs/step-times.svg``.

::

    python benchmarks/step_times.py            # measures and draws, about two minutes
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from checkpoint_async import ARMS, COPY, STATE_MIB, run_steps

TREE = Path(__file__).resolve().parent.parent
LABELS = {
    "ours": "report_state, ASYNC",
    "ours, SYNC": "report_state, SYNC",
    "DCP async": "torch.distributed.checkpoint.async_save",
    "torch.save in a thread": "a copy, and torch.save in a thread",
}
USUAL, WRITING, CALL = "#9aa5b1", "#3b82c4", "#d9534f"
WIDTH, LEFT, PANEL, TOP, GAP, SLOT = 720, 64, 92, 56, 34, 58


def draw(taken: Mapping[str, Any], state_mib: int) -> str:
    """Return the picture of one round."""
    usual_s = median(step for arm in ARMS for step in taken[arm]["usual_s"])
    longest_s = max(
        max([arm["call_s"] + arm["steps_s"][0], *arm["steps_s"], *arm["usual_s"]])
        for arm in map(taken.__getitem__, ARMS)
    )
    height = TOP + len(ARMS) * (PANEL + GAP) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_legend(),
    ]
    for number, name in enumerate(ARMS):
        bottom = TOP + number * (PANEL + GAP) + GAP + PANEL - 10
        parts += _panel(taken[name], LABELS[name], bottom, usual_s, longest_s)
    parts.append(
        f'<text x="{LEFT}" y="{height - 8}" fill="#555">{state_mib / 1024:.2g} GiB of model and '
        f"AdamW, one rank. One copy of it in memory takes {taken['copy_s'] * 1e3:.0f} ms.</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> Iterator[str]:
    entries = [
        (USUAL, "a step"),
        (WRITING, "a step while the checkpoint is being written"),
        (CALL, "the call that saves"),
    ]
    x = LEFT
    for colour, label in entries:
        yield f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="24" fill="#222">{label}</text>'
        x += 40 + 7 * len(label)


def _panel(
    arm: Mapping[str, Any], label: str, bottom: int, usual_s: float, longest_s: float
) -> Iterator[str]:
    scale = (PANEL - 10) / longest_s
    yield f'<text x="{LEFT}" y="{bottom - PANEL + 6}" fill="#222">{label}</text>'
    yield f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - 10}" y2="{bottom}" stroke="#888"/>'
    y = bottom - usual_s * scale
    yield (
        f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 10}" y2="{y:.1f}" stroke="#888" '
        f'stroke-dasharray="4 3"/>'
    )
    usual = f"{usual_s:.2f} s"
    yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{usual}</text>'
    slots = [(0.0, seconds, USUAL) for seconds in arm["usual_s"]]
    passed_s = arm["call_s"]
    for number, seconds in enumerate(arm["steps_s"]):
        colour = WRITING if passed_s < arm["done_s"] else USUAL
        slots.append((0.0 if number else arm["call_s"], seconds, colour))
        passed_s += seconds
    for number, (call_s, seconds, colour) in enumerate(slots):
        x, call, step = LEFT + 8 + number * SLOT, call_s * scale, seconds * scale
        yield _bar(x, bottom - step, step, colour)
        yield _bar(x, bottom - step - call, call, CALL) if call else ""


def _bar(x: float, y: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{SLOT - 12}" height="{height:.1f}" fill="{colour}"/>'
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="of which the calmest is drawn")
    parser.add_argument("--mib", type=int, default=STATE_MIB, help="of the state")
    parser.add_argument("--output", type=Path, default=TREE / "docs" / "step-times.svg")
    arguments = parser.parse_args()
    found = run_steps(TREE, ARMS, rounds=arguments.rounds, state_mib=arguments.mib)
    calmest = min(found["rounds"], key=lambda taken: max(taken[arm]["others"] for arm in ARMS))
    arguments.output.write_text(draw(calmest, arguments.mib))
    for arm in ARMS:
        steps = ", ".join(f"{seconds:.2f}" for seconds in calmest[arm]["steps_s"])
        print(f"{LABELS[arm]}: the call {calmest[arm]['call_s'] * 1e3:.0f} ms, steps {steps} s")
    print(f"{COPY}: {calmest['copy_s'] * 1e3:.0f} ms; {arguments.output}")


if __name__ == "__main__":
    main()
