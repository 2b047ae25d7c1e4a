"""The figures of the documentation, as SVG: ``conf.py`` draws them when it is built."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

LINE, INK, FADED = 17, "#1f2933", "#52606d"
FILLS = {
    "place": "#f5f7fa",
    "process": "#d9eefb",
    "rank": "#d5f2e3",
    "file": "#fdf0d0",
    "good": "#d5f2e3",
    "bad": "#fbdfdc",
}


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text; the first one is its name."""

    left: int
    top: int
    width: int
    height: int
    kind: str
    text: str

    def draw(self) -> str:
        dashes = ' stroke-dasharray="5 4"' if self.kind == "place" else ""
        shape = (
            f'<rect x="{self.left}" y="{self.top}" width="{self.width}" height="{self.height}" '
            f'rx="8" fill="{FILLS[self.kind]}" stroke="{FADED}"{dashes}/>'
        )
        lines = self.text.splitlines()
        middle = self.left + self.width // 2
        first = self.top + 22
        if self.kind != "place":
            first = self.top + (self.height - LINE * len(lines)) // 2 + 13
        return shape + "".join(
            _text(middle, first + LINE * n, line, bold=n == 0, color=INK if n == 0 else FADED)
            for n, line in enumerate(lines)
        )


@dataclass(frozen=True)
class Arrow:
    """A line through points, with a head at its end and a label beside its middle."""

    points: tuple[tuple[int, int], ...]
    label: str = ""
    label_at: tuple[int, int] = (0, 0)
    both_ways: bool = False

    def draw(self) -> str:
        path = " L".join(f"{x} {y}" for x, y in self.points)
        start = ' marker-start="url(#head)"' if self.both_ways else ""
        x, y = self.label_at
        return (
            f'<path d="M{path}" fill="none" stroke="{INK}" stroke-width="1.4" '
            f'marker-end="url(#head)"{start}/>'
        ) + "".join(
            _text(x, y + LINE * n, line, color=INK)
            for n, line in enumerate(self.label.splitlines())
        )


def _text(x: int, y: int, text: str, *, bold: bool = False, color: str = INK) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" fill="{color}" text-anchor="middle"{weight}>{escape(text)}</text>'
    )


def render(width: int, height: int, title: str, parts: list[Box | Arrow]) -> str:
    """Return a figure as the text of an SVG file.

    Parameters
    ----------
    width, height
        In units of the figure; it scales with the page.
    title
        What a screen reader says in its place.
    parts
        Drawn in this order.
    """
    head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/>'
        "</marker></defs>"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'font-family="system-ui, sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            head,
            f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
            *(part.draw() for part in parts),
            "</svg>",
            "",
        ]
    )


def who_runs_where() -> str:
    """Return the figure of the processes of a run and of its files."""
    parts: list[Box | Arrow] = [
        Box(15, 15, 215, 245, "place", "login node, or laptop"),
        Box(35, 60, 175, 60, "process", "python train.py\ntrainer.fit()"),
        Box(35, 175, 175, 60, "process", "follower\nprints states and reports"),
        Box(290, 15, 655, 245, "place", "the job: an allocation of Slurm, or this machine"),
        Box(
            310,
            60,
            150,
            175,
            "process",
            "executor\nstarts agents and\nranks with srun or\nmpiexec, restarts,\nstops",
        ),
    ]
    for number, top in enumerate((60, 155)):
        parts += [
            Box(545, top, 90, 80, "process", f"agent\nof node {number + 1}"),
            *(
                Box(
                    680 + 130 * rank,
                    top,
                    115,
                    80,
                    "rank",
                    f"rank {2 * number + rank}\nMPI rank\ntrain_func",
                )
                for rank in range(2)
            ),
            Arrow(((635, top + 40), (680, top + 40)), both_ways=True),
            Arrow(((460, top + 40), (545, top + 40)), "TCP", (502, top + 32), both_ways=True),
        ]
    parts += [
        Box(
            15,
            320,
            930,
            65,
            "file",
            "run directory on the filesystem that all nodes share\n"
            "status · metrics · ledger · logs · checkpoints, each of which appears by one rename",
        ),
        Arrow(((210, 90), (310, 90)), "sbatch", (260, 82)),
        Arrow(((737, 140), (737, 155)), both_ways=True),
        Arrow(((867, 140), (867, 155)), "NCCL, Gloo, MPI", (802, 152), both_ways=True),
        Arrow(((385, 235), (385, 320)), "state, decisions", (440, 294)),
        Arrow(((802, 260), (802, 320)), "checkpoints", (845, 294), both_ways=True),
        Arrow(((122, 320), (122, 235)), "reads", (145, 294)),
    ]
    title = "A script submits an executor, which starts MPI ranks; all meet in the run directory"
    return render(960, 400, title, parts)


def life_of_a_run() -> str:
    """Return the figure of the states of a run and what leads from one to another."""
    parts: list[Box | Arrow] = [
        Box(15, 105, 150, 60, "process", "submitted\nwaits in the queue"),
        Box(230, 105, 150, 60, "process", "starting\nranks join MPI"),
        Box(445, 105, 150, 60, "rank", "running\ntrain_func, report()"),
        Box(730, 20, 160, 55, "good", "finished\nits Result is stored"),
        Box(730, 107, 160, 55, "bad", "stopped\nfit() again resumes"),
        Box(730, 194, 160, 55, "bad", "failed\nfit() again resumes"),
        Arrow(((165, 135), (230, 135))),
        Arrow(((380, 135), (445, 135))),
        Arrow(((595, 122), (665, 47), (730, 47)), "all ranks return", (650, 36)),
        Arrow(((595, 135), (730, 135)), "stop, cancel", (672, 128)),
        Arrow(((595, 148), (665, 221), (730, 221)), "failures\nused up", (690, 178)),
        Arrow(
            ((510, 165), (510, 205), (305, 205), (305, 165)),
            "a rank fails, hangs or is killed; a node is lost",
            (407, 223),
        ),
        Arrow(
            ((520, 105), (520, 60), (90, 60), (90, 105)),
            "preempted, or at the time limit: the ranks save, and the job\n"
            "is queued again or a successor is submitted",
            (305, 32),
        ),
        Box(230, 236, 355, 30, "file", "goes on from the newest checkpoint"),
    ]
    return render(905, 280, "The states of a run, and what leads from one to another", parts)


FIGURES = {"who-runs-where": who_runs_where, "life-of-a-run": life_of_a_run}


def draw(directory: Path) -> None:
    """Write every figure into a directory."""
    for name, figure in FIGURES.items():
        (directory / f"{name}.svg").write_text(figure())
