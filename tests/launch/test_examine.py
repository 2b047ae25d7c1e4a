"""What ``hpctrain doctor`` says of a job that looks at nodes for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.doctor.finding import Finding
from hpctrain.launch import examine


def test_a_job_that_gives_no_answer_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(examine, "_MINUTES", 0)
    monkeypatch.setattr(examine, "_cancel", cancelled.append)
    found = examine._await_answer("7", tmp_path / "answer", tmp_path / "log", patience_s=0.0)
    assert isinstance(found, Finding)
    assert found.what.startswith("job 7 gave no answer within 0 s. --patience sets how long")
    assert cancelled == ["7"]
