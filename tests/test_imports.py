"""The process of the tests that forks the ranks of many runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.imports import imported_once
from tests.runs import fit

pytestmark = pytest.mark.mpi


def _parent_and_imports() -> tuple[int, bool]:
    import sys

    return os.getppid(), "wave" in sys.modules


def test_ranks_of_runs_in_a_row_are_forked_from_one_process_and_later_ones_are_not(
    tmp_path: Path,
) -> None:
    with imported_once("wave"):
        first, second = (fit(_parent_and_imports, tmp_path, name=name) for name in ("1", "2"))
    assert first.return_value == second.return_value
    parent, has_imported = first.return_value
    assert has_imported
    assert not Path(f"/proc/{parent}").exists()
    alone = fit(_parent_and_imports, tmp_path, name="3")
    assert not alone.return_value[1]


def test_ranks_of_other_variables_are_forked_from_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with imported_once("wave"):
        first = fit(_parent_and_imports, tmp_path, name="1")
        monkeypatch.setenv("VARIABLE_OF_A_TEST", "1")
        second = fit(_parent_and_imports, tmp_path, name="2")
    assert first.return_value[1]
    assert second.return_value[1]
    assert first.return_value[0] != second.return_value[0]


def _has_imported_pandas() -> bool:
    import sys

    return "pandas" in sys.modules


def test_ranks_are_forked_from_a_process_with_pandas_whose_allocator_has_a_thread_otherwise(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pandas")
    with imported_once("pandas"):
        assert fit(_has_imported_pandas, tmp_path).return_value
