"""The code blocks of the documentation, for its tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("[!_]*.rst"))]
PAGES += sorted((CHECKOUT / "docs" / "design").glob("*.rst"))


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    return _fences(page.name, lines) if page.suffix == ".md" else _directives(page.name, lines)


def _fences(page: str, lines: list[str]) -> list[Block]:
    found = []
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        text = "\n".join(lines[start + 1 : number]) + "\n"
        language = lines[start][3:].strip()
        name = f"readme-{language}-{1 + sum(b.language == language for b in found)}"
        found.append(Block(page, start + 2, language, name, text))
        start = None
    return found


def _directives(page: str, lines: list[str]) -> list[Block]:
    found = []
    for number, line in enumerate(lines):
        if not (match := re.fullmatch(r"\.\. code-block:: (\w+)", line)):
            continue
        body = []
        for following in lines[number + 1 :]:
            if following and not following.startswith("   "):
                break
            body.append(following[3:])
        options = dict(re.findall(r"^:(\w+): (.*)$", "\n".join(body), re.MULTILINE))
        while body and (body[0].startswith(":") or not body[0]):
            del body[0]
            number += 1
        text = "\n".join(body).rstrip() + "\n"
        found.append(Block(page, number + 2, match[1], options.get("name", ""), text))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]


def block(name: str) -> str:
    (found,) = [b for b in BLOCKS if b.name == name]
    return found.text


def without_places(line: str) -> str:
    """Leave out what differs between machines: paths, host names, and digits far behind the dot."""
    line = re.sub(r"/\S*/(?=runs/|bin/)", "", line)
    line = re.sub(r"\S*mpiexec ", "mpiexec ", line)
    line = re.sub(r" ranks on \S+", " ranks on HOST", line)
    line = re.sub(r"\S*bin/python\S*", "PYTHON", line)
    line = re.sub(r"\bjob (allocation )?\d+|^\d+$", "job N", line)
    return re.sub(r"(0\.\d{3})\d*", r"\1", line)


def apart(lines: list[str]) -> list[str]:
    """Return lines with the checkpoint of a report on one of its own, as one that comes later."""
    return re.sub(r"(?m)  (checkpoint \d+)$", r"\n\1", "\n".join(lines)).splitlines()


def assert_promised(promised: list[str], printed: str) -> None:
    """Compare whole lines; which states and reports are seen in between is a matter of speed."""
    fleeting = re.compile(
        r"hpctrain: \w+ (starting|submitted as)|report [123] |checkpoint 00000[123]$|salloc: |"
        r"\[\S*gloo/|\[W\d+ .*c10d"
    )
    expected = [without_places(line) for line in promised if not fleeting.match(line)]
    seen = [without_places(line) for line in printed.splitlines() if not fleeting.match(line)]
    assert seen == expected
