"""Run those tests of one of Ray's files that apply here, and count them by function."""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.ray_conformance import stand_ins
from tests.ray_conformance.applies import Program
from tests.ray_conformance.names_of_tune import RIGS
from tests.ray_conformance.port import dotted, port

# What hpctrain says, and torch, where a test asks for a GPU and there is none: Ray fails there too.
NO_GPU = re.compile(r"torch sees no GPU here|Torch not compiled with CUDA|Found no NVIDIA driver")
INTERNET = re.compile(r"huggingface\.co|URLError|Name or service not known|Error downloading")
_SETUPS = ("setUp", "tearDown", "setUpClass", "tearDownClass", "setup_method", "teardown_method")
# Ray's fixtures start a cluster; here there is none to start.
CONFTEST = """
import pytest

def _nothing():
    yield

for _name in {fixtures!r}:
    globals()[_name] = pytest.fixture(_nothing, name=_name)

@pytest.fixture
def propagate_logs():
    yield
"""


class Absent:
    """Stands for a name that does not exist here: only a test that uses it fails."""


def run_tests(
    text: str,
    module: str,
    support: dict[str, str],
    timeout_s: float,
    extra: str,
    run: Callable[[list[str], Path, float, str], tuple[int, str]],
) -> dict[str, Any]:
    """Return the state of each test function of a file; ``support`` are modules that it imports."""
    program = Program(text, rigged=RIGS.get(module, ()))
    functions: dict[str, str] = {}
    kept = _kept(program, functions)
    names = [name for one in kept for name in _names(one)]
    if not names:
        return {"state": _sum(functions), "functions": functions}
    with tempfile.TemporaryDirectory(prefix="ray-conformance-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        stand_ins.lay_out(folder)
        source = stand_ins.shrink(port(guarded(kept, program))).replace("@FOLDER@", name)
        (folder / f"{module}.py").write_text(source)
        for name, helper in support.items():
            (folder / f"{name}.py").write_text(stand_ins.shrink(port(of_support(helper))))
        fixtures = sorted(set(re.findall(r"\bray_\w+|shutdown_only", text)))
        (folder / "conftest.py").write_text(CONFTEST.format(fixtures=fixtures))
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --timeout=60\n")
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        argv += ["--tb=line", f"--junitxml={folder}/junit.xml", f"{module}.py"]
        code, output = run(argv, folder, timeout_s, extra)
        junit = folder / "junit.xml"
        if junit.exists():
            found = _read(junit)
            functions |= {test: found[test] for test in names if test in found}
        for test in names:
            if test not in functions:
                error = "did not end in time" if code == 124 else output.strip()[-300:]
                functions[test] = f"failed: {error}"
    return {"state": _sum(functions), "functions": dict(sorted(functions.items()))}


def _kept(program: Program, functions: dict[str, str]) -> list[ast.stmt]:
    """Return the statements that apply; add why not to ``functions`` for each other test."""
    kept: list[ast.stmt] = []
    for node in program.tree.body:
        if isinstance(node, ast.ClassDef) and any(_is_test(one) for one in node.body):
            reasons = _reasons_of_methods(node, program)
            node.body = [one for one in node.body if one not in reasons] or [ast.Pass()]
            for method, reason in reasons.items():
                if _is_test(method):
                    functions[method.name] = f"not applicable: {reason}"
        reason = program.reason(node)
        if reason is None:
            kept.append(node)
            continue
        for name in _names(node):
            functions[name] = f"not applicable: {reason}"
    return kept


def _reasons_of_methods(node: ast.ClassDef, program: Program) -> dict[ast.FunctionDef, str]:
    """Return the methods that do not apply, and why; a test also for a method that it calls."""
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    reasons: dict[ast.FunctionDef, str] = {}
    # Fixtures are of all tests of the class.
    fixtures = [one for one in methods.values() if one.name in _SETUPS or one.decorator_list]
    for one in fixtures:
        if not _is_test(one) and (reason := program.reason(one)):
            return dict.fromkeys(methods.values(), reason)
    for one in methods.values():
        if reason := program.reason(one):
            reasons[one] = reason
    for _ in methods:
        for one in methods.values():
            for inner in ast.walk(one):
                if not (isinstance(inner, ast.Attribute) and dotted(inner) == f"self.{inner.attr}"):
                    continue
                called = methods.get(inner.attr)
                if one not in reasons and called in reasons:
                    reasons[one] = reasons[called]
    return reasons


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test")


def _names(node: ast.stmt) -> list[str]:
    """Return the names of the tests that a statement holds."""
    inner = node.body if isinstance(node, ast.ClassDef) else [node]
    return [one.name for one in inner if _is_test(one)]  # type: ignore[attr-defined]


def guarded(kept: list[ast.stmt], program: Program) -> str:
    """Return the statements, where a name of Ray that is not here fails only when it is used."""
    lines: list[str] = []
    for node in kept:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ray":
            for alias in node.names:
                bound = alias.asname or alias.name
                if bound == "*" or program.reason_of_name(bound):
                    continue
                is_rigged = alias.name in program.rigged
                home = "tests.ray_conformance.rig" if is_rigged else node.module
                one = ast.ImportFrom(home, [alias], node.level)
                lines += ["try:", f"    {ast.unparse(one)}", "except Exception as error:"]
                lines.append(f"    {bound} = type({bound!r}, (), {{'absent': str(error)}})")
        elif isinstance(node, ast.Import | ast.ImportFrom) and "__future__" not in ast.dump(node):
            lines += ["try:", f"    {ast.unparse(node)}", "except ImportError:", "    pass"]
        else:
            lines.append(ast.unparse(node))
    return "\n".join(lines) + "\n"


def of_support(text: str) -> str:
    """Return what of a helper module applies, so that one private name does not take the rest."""
    program = Program(text)
    return guarded([one for one in program.tree.body if program.reason(one) is None], program)


def _read(junit: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        name = re.sub(r"\[.*", "", case.get("name", ""), flags=re.S)
        state = "passed"
        for tag in ("failure", "error"):
            if (node := case.find(tag)) is not None:
                text = (node.get("message") or "") + (f" | {node.text}" if tag == "error" else "")
                needs = None
                if INTERNET.search(text):
                    needs = "not applicable: needs the internet"
                elif NO_GPU.search(text):
                    needs = "not applicable: needs a GPU"
                state = (
                    needs or f"failed: {re.sub(r'/tmp/ray-conformance-[^/]+', 'DIR', text)[:300]}"
                )
        if (node := case.find("skipped")) is not None:
            state = f"not applicable: skipped, {node.get('message', '')[:80]}"
        # Of the cases of one function one that fails counts most, and one that passed more than one
        # that does not apply.
        order = ("not applicable", "passed", "failed")
        ranks = [order.index(one.split(":")[0]) for one in (found.get(name, order[0]), state)]
        if name not in found or ranks[1] > ranks[0]:
            found[name] = state
    return found


def _sum(functions: dict[str, str]) -> str:
    passed = sum(state == "passed" for state in functions.values())
    applies = sum(not state.startswith("not applicable") for state in functions.values())
    return f"{passed} of {applies}" if applies else "not applicable"
