"""Who else can write where a run lies: into its storage directory, or into the run directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.data import from_numpy
from hpctrain.rundir.files import write_atomic

# Puts links to a file where a process with a known id is expected to write first.
PLANT = """
import os, sys

directory, secret, *names = sys.argv[1:]
for name in names:
    os.symlink(secret, os.path.join(directory, name))
print("planted", flush=True)
input()
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody can write, as those of projects for their members."""
    directory = Path(tempfile.mkdtemp(prefix="hpctrain-shared-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


def csv(path: Path) -> None:
    from_numpy({"a": [1, 2]}).write_csv(path.with_suffix(".csv"))


def write(path: Path) -> None:
    write_atomic(path.with_suffix(".csv"), b"a\n1\n2\n")


@pytest.mark.parametrize("writes", [write, csv])
def test_nobody_leads_a_writer_to_another_file(
    writes: Callable[[Path], None], shared: Path, tmp_path: Path, stranger: Any
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    attacker = stranger(PLANT, shared, secret, f".out.csv.{os.getpid()}")
    assert attacker.read() == "planted"
    writes(shared / "out")
    assert secret.read_text() == "mine"
    assert (shared / "out.csv").read_text().split() in (["a", "1", "2"], ['"a"', "1", "2"])
    assert not (shared / "out.csv").is_symlink()
