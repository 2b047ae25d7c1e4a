"""A small environment: an interpreter, what hpctrain needs, and hpctrain as an editable one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

from tests.pack.mounts import require_squashfs

_ROOT = Path(__file__).parents[2]
_DIRECT = ("cloudpickle", "mpi4py", "mpich", "rich", "submitit", "typer", "xxhash")
# As setuptools writes it, and shorter.
_FINDER = """\
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

MAPPING: dict[str, str] = {mapping!r}
NAMESPACES: dict[str, list[str]] = {{}}


class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in MAPPING:
            init = Path(MAPPING[fullname], "__init__.py")
            return spec_from_file_location(fullname, init) if init.exists() else None
        return None


def install():
    sys.meta_path.append(_EditableFinder)
"""


@dataclass(frozen=True)
class SmallEnvironment:
    """A venv with all that a run needs, and nothing else."""

    path: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.path / "bin/python")

    @property
    def site_packages(self) -> Path:
        """Where its packages are."""
        (found,) = self.path.glob("lib/python3*/site-packages")
        return found

    def run(
        self, *words: str, code: int = 0, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a module of it."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [self.python, "-m", *words],
            cwd=cwd or self.path.parent,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def pack(self, output: Path, *words: str) -> dict[str, Any]:
        """Pack it; return what the command prints."""
        done = self.run("hpctrain.cli", "pack", "-o", str(output), "--json", *words)
        return json.loads(done.stdout)


def make_environment(path: Path) -> SmallEnvironment:
    """Make a venv, and copy into it what is installed here: the tests need no network."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    environment = SmallEnvironment(path)
    for name in sorted(_closure()):
        for file in distribution(name).files or ():
            source = Path(str(file.locate()))
            target = Path(os.path.normpath(environment.site_packages / file))
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
    add_editable(
        environment,
        "hpctrain",
        {"hpctrain": _ROOT / "hpctrain", "hpctrain.slurm_templates": _ROOT / "slurm_templates"},
    )
    return environment


def add_editable(environment: SmallEnvironment, name: str, mapping: dict[str, Path]) -> None:
    """Install a project as ``pip install -e`` does, without copying anything of it."""
    folder = environment.site_packages
    finder = f"__editable___{name}_1_finder"
    path = f"__editable__.{name}-1.pth"
    where = {module: str(place) for module, place in mapping.items()}
    (folder / f"{finder}.py").write_text(_FINDER.format(mapping=where))
    (folder / path).write_text(f"import {finder}; {finder}.install()")
    describe_editable(environment, name, path)


def describe_editable(environment: SmallEnvironment, name: str, *files: str) -> Path:
    """Write the metadata of an editable installation."""
    metadata = environment.site_packages / f"{name}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (metadata / "direct_url.json").write_text(
        json.dumps({"url": "file:///project", "dir_info": {"editable": True}})
    )
    (metadata / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    return metadata


def _closure() -> set[str]:
    """Return what hpctrain needs, and what that needs in turn."""
    found: set[str] = set()
    open_names = list(_DIRECT) + (["tomli"] if sys.version_info < (3, 11) else [])
    while open_names:
        name = open_names.pop()
        if name in found:
            continue
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        open_names += [re.split(r"[^\w.-]", each)[0] for each in requires if "extra ==" not in each]
    return found


@pytest.fixture(scope="session")
def small_environment(tmp_path_factory: pytest.TempPathFactory) -> SmallEnvironment:
    """Return an environment that no test changes; its path has a space."""
    return make_environment(tmp_path_factory.mktemp("small") / "an environment")


@pytest.fixture
def own_environment(tmp_path: Path, small_environment: SmallEnvironment) -> SmallEnvironment:
    """Return a copy that a test may change."""
    path = tmp_path / "env"
    shutil.copytree(small_environment.path, path, symlinks=True)
    return SmallEnvironment(path)


@pytest.fixture(scope="session")
def packed(
    tmp_path_factory: pytest.TempPathFactory, small_environment: SmallEnvironment
) -> tuple[Path, dict[str, Any]]:
    """Return the file of the packed environment, and what the command printed."""
    path = tmp_path_factory.mktemp("packed") / "environment.tar"
    return path, small_environment.pack(path)


@pytest.fixture(scope="session")
def packed_image(
    tmp_path_factory: pytest.TempPathFactory, small_environment: SmallEnvironment
) -> tuple[Path, dict[str, Any]]:
    """Return the same as an image of squashfs, and what the command printed."""
    require_squashfs()
    path = tmp_path_factory.mktemp("packed") / "environment.squashfs"
    return path, small_environment.pack(path, "--format", "squashfs")
