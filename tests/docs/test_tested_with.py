"""The page of tested versions says what the tests say that they test."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
JUNIT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="matrix" value="requeue"/></properties></testcase>
<testcase name="b"><properties><property name="matrix" value="homes"/></properties></testcase>
<testcase name="c"><properties><property name="matrix" value="homes"/></properties>
<failure/></testcase>
<testcase name="d"><properties><property name="matrix" value="pmix"/></properties>
<skipped type="pytest.xfail" message="reason: this build of Slurm has no mpi/pmix plugin"/>
</testcase>
<testcase name="e"/>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tested_with", ROOT / "docs/tested_with.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_row_is_passed_if_all_its_tests_are(page: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    assert page.read_rows(tmp_path / "junit.xml") == {
        "requeue": "yes",
        "homes": "NO",
        "pmix": "this build of Slurm has no mpi/pmix plugin",
    }


def test_the_results_have_the_rows_that_tests_are_marked_with(page: ModuleType) -> None:
    here = Path(__file__)
    tests = [path.read_text() for path in ROOT.glob("tests/**/test_*.py") if path != here]
    marked = {row for text in tests for row in re.findall(r'mark\.matrix\(f?"([^"]+)"', text)}
    patterns = [re.compile(re.sub(r"\\{\w+\\}", ".+", re.escape(row))) for row in marked]
    results = page.read_results()
    assert len(results) >= 3
    for version, site in results.items():
        assert "NO" not in site["rows"].values(), version
        for row in site["rows"]:
            assert any(pattern.fullmatch(row) for pattern in patterns), (version, row)
        for pattern in patterns:
            assert any(pattern.fullmatch(row) for row in site["rows"]), (version, pattern)


def test_the_page_has_a_column_for_each_slurm_in_the_order_of_versions(page: ModuleType) -> None:
    site = {"system": "S", "Python": "3", "MPICH": "5", "Open MPI": "4"}
    results = {
        "24.11.5": {**site, "rows": {"requeue": "yes"}},
        "9.1": {**site, "rows": {"requeue": "NO"}},
    }
    text = page.render(results)
    assert "   * - \n     - Slurm 9.1\n     - Slurm 24.11.5\n" in text
    assert "   * - requeue\n     - NO\n     - yes\n" in text
