from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.cli.checkpoints import CheckpointView, find_resumed, render
from hpctrain.rundir.display import format_size
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three checkpoints."""
    run = tmp_path / "run"
    run.mkdir()
    store = CheckpointStore(run / "checkpoints")
    store.prepare()
    (run / "plan.json").write_text("{}")
    for report, name in ((1, "zebra"), (2, None), (3, "best")):
        part = staging_directory(run / "checkpoints", attempt=1, report=report, rank=0)
        part.mkdir(parents=True)
        (part / "model.bin").write_bytes(bytes(2048))
        parts = {0: StagedPart(files=tuple(seal(part)), name=name, versions={"torch": "2"})}
        metrics = {"loss": 1 / report}
        store.commit(attempt=1, report=report, world_size=4, metrics=metrics, parts=parts)
    return run


def listing(workplace: Any, run: Path, *options: str) -> dict[str, Any]:
    answer = workplace("checkpoints", str(run), "--json", *options)
    found: dict[str, Any] = json.loads(answer.stdout)
    found["returncode"] = answer.returncode
    return found


def test_checkpoints_are_listed_by_report_with_what_resuming_would_use(workplace: Any, run: Path):
    answer = workplace("checkpoints", str(run))
    assert answer.returncode == 0, answer.stderr
    header, *rows, last = answer.stdout.splitlines()
    assert header.split()[:3] == ["CHECKPOINT", "REPORT", "ATTEMPT"]
    assert [row.split()[:2] for row in rows] == [["zebra", "1"], ["000002", "2"], ["best", "3"]]
    assert "2 KiB" in rows[0]
    assert "loss=0.333333" in rows[2]
    assert last == "Resuming would verify best, and use it if it is undamaged."


def test_verifying_names_what_is_damaged_and_changes_nothing(workplace: Any, run: Path):
    (run / "checkpoints" / "best" / "model.bin").write_bytes(bytes(2047) + b"x")
    answer = workplace("checkpoints", str(run), "--verify")
    assert answer.returncode == 4
    shown = " ".join(answer.stdout.split())
    assert "checkpoint best: " in shown
    assert "2048 bytes and digest" in shown
    assert answer.stdout.splitlines()[-1] == "Resuming would use 000002."
    assert (run / "checkpoints" / "best").is_dir()


def test_a_checkpoint_without_its_manifest_is_damage_that_needs_no_verifying(
    workplace: Any, run: Path
):
    (run / "checkpoints" / "best" / MANIFEST_NAME).unlink()
    found = listing(workplace, run)
    assert found["returncode"] == 4
    assert found["resumes_from"] == "000002"
    assert [c["state"] for c in found["checkpoints"]] == ["damaged", "complete", "complete"]


def view(name: str, state: str, *, manifest: Any = "one") -> CheckpointView:
    return CheckpointView(name=name, state=state, manifest=manifest)


def test_resuming_passes_over_what_is_damaged_and_not_over_what_cannot_be_read():
    old, new = view("1", "verified"), view("2", "verified")
    assert find_resumed([old, new, view("3", "damaged")]) == "2"
    assert find_resumed([old, new, view("3", "unreadable")]) is None
    assert find_resumed([view("1", "unreadable"), new]) == "2"
    # Nobody knows its report.
    assert find_resumed([view("1", "unreadable", manifest=None), new]) is None
    assert find_resumed([]) is None
    text = render([view("3", "unreadable", manifest=None)], None, verified=False)
    assert text.endswith("fit() would not resume before the unreadable checkpoint can be read.")


def test_what_was_set_aside_is_listed_and_no_failure(workplace: Any, run: Path):
    (run / "checkpoints" / "best").rename(run / "checkpoints" / "best.damaged")
    found = listing(workplace, run, "--verify")
    assert found["returncode"] == 0
    states = {c["name"]: c["state"] for c in found["checkpoints"]}
    assert states == {"best.damaged": "set aside", "zebra": "verified", "000002": "verified"}
    _, first, _ = found["checkpoints"]
    assert (first["bytes"], first["files"], first["versions"]) == (2048, 1, {"torch": "2"})


def test_a_run_without_checkpoints_would_begin_at_the_beginning(workplace: Any, run: Path):
    shutil.rmtree(run / "checkpoints")
    answer = workplace("checkpoints", str(run))
    assert answer.returncode == 0
    assert answer.stdout == "There is no usable checkpoint: fit() would start from scratch.\n"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**40, "3 TiB")]
)
def test_sizes_have_the_unit_that_suits_them(size: int, text: str):
    assert format_size(size) == text
