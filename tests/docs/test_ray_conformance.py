"""The pages have each measured script, and a reason for each that needs an edit or fails."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    path = ROOT / "docs/ray_conformance.py"
    spec = importlib.util.spec_from_file_location("ray_conformance", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_listed_script_and_test_has_a_result(page: ModuleType) -> None:
    sources = json.loads((ROOT / "tests/ray_conformance/sources.json").read_text())
    listed = {
        f"{one['version'] or one['repository']}:{one['path']}"
        for one in sources
        if one["kind"] != "support"
    }
    assert set(page.read_results()) == listed


def test_every_script_that_needs_an_edit_is_on_the_page_with_a_reason(page: ModuleType) -> None:
    results = page.read_results()
    text = page.render(results) + page.render_tune(results)
    needing = {
        n: one for n, one in results.items() if one["state"] in ("undocumented edit", "wrong")
    }
    for name, one in needing.items():
        assert page.reason_of(one["error"]) != "not understood yet", (name, one["error"])
        assert f"``{name}``" in text


def test_every_test_of_ray_tune_that_fails_is_on_the_page_with_a_reason(page: ModuleType) -> None:
    results = page.read_results()
    text = page.render_tune(results)
    for name, function, error in page.failures_of_tune(results):
        reason = page.reason_of(f"{function}: {error}", page.REASONS_OF_TESTS)
        assert reason != "not understood yet", (name, function, error)
        assert f"   * - ``{function}``\n     - {reason}\n" in text


def test_what_is_ray_tunes_is_on_the_page_of_sweeps(page: ModuleType) -> None:
    results = {
        "2.44:python/ray/tune/a.py": {"kind": "script", "state": "unchanged"},
        "2.44:python/ray/train/b.py": {"kind": "script", "state": "unchanged"},
    }
    assert "/a.py" not in page.render(results)
    assert "/b.py" in page.render(results)
    assert "/a.py" in page.render_tune(results)
    assert "/b.py" not in page.render_tune(results)


def test_the_sum_counts_states_by_version(page: ModuleType) -> None:
    results = {
        "2.6:a.py": {"kind": "script", "state": "unchanged"},
        "2.44:b.py": {"kind": "script", "state": "undocumented edit", "error": "X: `y`"},
        "2.44:t.py": {"kind": "test", "functions": {"a": "passed", "b": "failed: no"}},
    }
    text = page.render(results)
    assert "   * - all\n     - 1\n     - 0\n     - 0\n     - 1\n     - 0\n     - 0\n" in text
    assert "``X: 'y'``" in text
    assert "   * - all\n     - 1 of 2\n" in text
