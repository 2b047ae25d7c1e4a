from __future__ import annotations

import re
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

from hpctrain.worker.imports import EXTRA_OF, is_found_here


def test_each_extra_brings_the_modules_that_it_is_advised_for() -> None:
    brought = {
        (found["extra"], found["package"])
        for line in requires("hpctrain") or []
        if (found := re.match(r"(?P<package>[\w-]+).*extra == ['\"](?P<extra>\w+)", line))
    }
    installed = packages_distributions()
    known = {module: extra for module, extra in EXTRA_OF.items() if module in installed}
    assert "torch" in known
    for module, extra in known.items():
        # xgboost-cpu is another build of xgboost.
        packages = {name.removesuffix("-cpu") for name in installed[module]}
        assert any((extra, package) in brought for package in packages), (module, extra)


@pytest.mark.parametrize(
    ("module", "there"),
    [
        ("json", True),
        ("json.decoder", True),
        ("json.no_such_part", False),
        ("json.decoder.no_such_part", False),
        ("no_such_module", False),
        ("hpctrain.worker.imports", True),
        ("beside_the_script", True),
    ],
)
def test_a_module_is_looked_for_as_an_import_would(
    tmp_path: Path, module: str, there: bool
) -> None:
    (tmp_path / "beside_the_script.py").touch()
    assert is_found_here(module, [str(tmp_path)]) is there
