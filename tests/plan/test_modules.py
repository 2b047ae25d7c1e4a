from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "model.py": "from helper import LR\ndef build():\n    return LR\n",
    "helper.py": "from settings import (  # of all\n    LR,\n    OTHER,\n)\n",
    "settings.py": "LR = 1\nOTHER = 2\n",
    "package/__init__.py": "",
    "package/a.py": "from . import b\nfrom .deep import inner\n",
    "package/b.py": "",
    "package/deep/inner.py": "from ..c import z\n",
    "package/c.py": "z = 1\n",
    "in_method.py": "",
    "plug.py": "",
    "default.py": "class Default: pass\n",
    "of_config.py": "class Net: pass\n",
    "in_closure.py": "def call(): pass\n",
    "unrelated.py": "",
}
SCRIPT = """
import importlib, sys
import numpy as np
import model, package.a, unrelated
from default import Default
from in_closure import call
from of_config import Net

class Trained:
    def go(self):
        import in_method

def plugged():
    return importlib.import_module("plug")

def closing(inner):
    def train(config, given=Default):
        Trained().go()
        return np.zeros(3), package.a.b, model.build(), plugged(), inner()
    return train

train = closing(call)
before = set(sys.modules)
"""
ASK = """
from hpctrain.plan.modules import ModuleFinder
from hpctrain.plan.spec import pack
content = pack((train, {"net": Net}), what="it")
before = set(sys.modules)
finder = ModuleFinder()
finder.follow(content)
print(*finder.digests)
assert not {name for name in set(sys.modules) - before if name in ("plug", "in_method")}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "100 % mine"
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def ask(argv: list[str], cwd: Path) -> set[str]:
    return set(subprocess.check_output([sys.executable, *argv], cwd=cwd, text=True).split())


REACHED = set(FILES) - {"unrelated.py"}


def test_a_script_reaches_what_its_function_uses_and_imports(folder: Path):
    (folder / "train.py").write_text(SCRIPT + ASK)
    assert ask([str(folder / "train.py")], folder.parent) == REACHED


def test_a_command_reaches_the_modules_of_its_working_directory(folder: Path):
    # As a notebook and an interactive interpreter, it has no file.
    assert ask(["-c", SCRIPT + ASK], folder) == REACHED


def test_a_function_of_a_module_brings_its_module(folder: Path):
    (folder / "work.py").write_text(SCRIPT)
    (folder / "train.py").write_text("import sys\nfrom work import train, Net\n" + ASK)
    # Of a module everything counts, not the function alone.
    assert ask([str(folder / "train.py")], folder.parent) == {*FILES, "work.py"}


def test_a_script_that_is_a_module_reaches_its_package(folder: Path):
    main = "import sys\nNet = 1\ndef train():\n    from .a import b\n" + ASK
    (folder / "package" / "main.py").write_text(main)
    package = {name for name in FILES if name.startswith("package")}
    assert ask(["-m", "package.main"], folder) == package


def test_a_typical_script_costs_few_calls_and_each_of_its_files_is_read_once(folder: Path):
    counted = """
import builtins, io, json
from hpctrain.plan.modules import ModuleFinder
from hpctrain.plan.spec import make_fingerprint, pack
content = pack(train, what="it")
make_fingerprint(content)
ModuleFinder().follow(content)
opened, calls = [], 0
def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")
real_open = open
builtins.open = lambda path, *rest: opened.append(path) or real_open(path, *rest)
sys.setprofile(count)
ModuleFinder().follow(content)
sys.setprofile(None)
print(len(opened), len(set(opened)), calls)
"""
    (folder / "train.py").write_text(SCRIPT + counted)
    argv = [sys.executable, str(folder / "train.py")]
    printed = subprocess.check_output(argv, cwd=folder, text=True)
    num_opened, num_files, num_calls = map(int, printed.split())
    assert num_opened == num_files <= len(REACHED)
    assert num_calls < 10_000
