"""Where editable installations have their modules, without running any code of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.errors import ConfigError
from hpctrain.pack.contents import Environment, list_members
from hpctrain.pack.editable import Elsewhere, find_elsewhere
from tests.pack.conftest import SmallEnvironment, add_editable, describe_editable


@pytest.fixture
def environment(tmp_path: Path) -> SmallEnvironment:
    (tmp_path / "env/lib/python3.11/site-packages").mkdir(parents=True)
    return SmallEnvironment(tmp_path / "env")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project with two modules, and much else."""
    root = tmp_path / "a project"
    for folder in ("mine/deep", "data", ".git", "other"):
        (root / folder).mkdir(parents=True)
    for file in ("mine/__init__.py", "mine/deep/weights.bin", "single.py", "other/__init__.py"):
        (root / file).write_text("VALUE = 1\n")
    (root / "data/large.bin").write_bytes(bytes(1000))
    return root


def of(environment: SmallEnvironment, elsewhere: Elsewhere) -> Environment:
    return Environment(
        prefix=environment.path,
        interpreter=environment.path / "bin/python",
        base=None,
        node_python=None,
        has_system_packages=False,
        site_packages=(environment.site_packages,),
        elsewhere=elsewhere,
        further=(),
    )


def test_modules_of_a_finder_belong_into_site_packages(
    environment: SmallEnvironment, project: Path
) -> None:
    add_editable(environment, "mine", {"mine": project / "mine", "single": project / "single"})
    found = find_elsewhere(environment.site_packages, prefix=environment.path)
    assert found.modules == {"mine": project / "mine", "single.py": project / "single.py"}
    assert found.left_out == {"__editable__.mine-1.pth", "__editable___mine_1_finder.py"}
    assert found.editable == {"mine": str(project)}


def test_of_the_root_of_a_project_only_its_packages_are_taken(
    environment: SmallEnvironment, project: Path
) -> None:
    (environment.site_packages / "mine.pth").write_text(f"{project}\n")
    describe_editable(environment, "mine", "mine.pth")
    found = find_elsewhere(environment.site_packages, prefix=environment.path)
    assert found.directories == {project: ("mine", "other", "single.py")}
    assert found.lines == {"mine.pth": [str(project)]}


def test_the_metadata_of_a_project_says_which_packages_are_its_own(
    environment: SmallEnvironment, project: Path
) -> None:
    (environment.site_packages / "mine.pth").write_text(f"# a comment\n\n{project}\n")
    metadata = describe_editable(environment, "mine", "mine.pth", "mine-1.dist-info/top_level.txt")
    (metadata / "top_level.txt").write_text("mine\nsingle\n")
    found = find_elsewhere(environment.site_packages, prefix=environment.path)
    assert found.directories == {project: ("mine", "single.py")}


def test_packages_without_an_init_file_are_taken_and_no_data_with_them(
    environment: SmallEnvironment, tmp_path: Path
) -> None:
    root = tmp_path / "a project"
    modules = ("spaces/direct.py", "spaces/deep/__init__.py", "org/team/tool/__init__.py")
    for file in (*modules, "spaces/deep/weights.bin", "spaces/large.bin", "data/train/0.npy"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("VALUE = 1\n")
    for file in ("venv/pyvenv.cfg", "venv/lib/__init__.py", "notes/a.txt", "not-one/b.py"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    (environment.site_packages / "mine.pth").write_text(f"{root}\n")
    describe_editable(environment, "mine", "mine.pth")
    found = find_elsewhere(environment.site_packages, prefix=environment.path)
    assert found.directories == {root: ("org/team/tool", "spaces/deep", "spaces/direct.py")}
    packed = [member.name for member in list_members(of(environment, found)) if member.source]
    # mksquashfs makes no directory by itself.
    assert [name.partition("/0/")[2] for name in packed if "/0/" in name] == [
        *("org", "org/team", "spaces"),
        *("org/team/tool", "org/team/tool/__init__.py"),
        *("spaces/deep", "spaces/deep/__init__.py", "spaces/deep/weights.bin"),
        "spaces/direct.py",
    ]


@pytest.mark.parametrize("top_level", ["", "mine\n"])
def test_an_editable_installation_without_a_module_is_refused(
    environment: SmallEnvironment, tmp_path: Path, top_level: str
) -> None:
    root = tmp_path / "a project"
    (root / "data").mkdir(parents=True)
    (environment.site_packages / "mine.pth").write_text(f"{root}\n")
    metadata = describe_editable(environment, "mine", "mine.pth")
    (metadata / "top_level.txt").write_text(top_level)
    missing = "mine" if top_level else "a module"
    with pytest.raises(ConfigError, match=f"of mine leads to {root}, where {missing} .* -e"):
        find_elsewhere(environment.site_packages, prefix=environment.path)


def test_of_a_directory_of_sources_all_is_taken(
    environment: SmallEnvironment, project: Path
) -> None:
    project = project.rename(project.with_name("src"))
    (environment.site_packages / "mine.pth").write_text(f"{project}\n")
    found = find_elsewhere(environment.site_packages, prefix=environment.path)
    assert found.directories == {project: None}
    assert found.editable == {}


def test_a_project_inside_of_the_environment_is_packed_once(
    environment: SmallEnvironment, project: Path
) -> None:
    inside = project.rename(environment.path / "src")
    (environment.site_packages / "mine.pth").write_text(f"{inside}\n")
    describe_editable(environment, "mine", "mine.pth")
    found = find_elsewhere(environment.site_packages, prefix=environment.path)
    assert (found.directories, found.lines) == ({}, {"mine.pth": [str(inside)]})


def test_an_editable_installation_of_an_unknown_kind_is_refused(
    environment: SmallEnvironment,
) -> None:
    (environment.site_packages / "mine.pth").write_text("import _mine_loader\n")
    describe_editable(environment, "mine", "mine.pth")
    with pytest.raises(ConfigError, match=r"installation of mine finds .* Install it without -e"):
        find_elsewhere(environment.site_packages, prefix=environment.path)


def test_a_project_that_is_gone_is_named(environment: SmallEnvironment, project: Path) -> None:
    add_editable(environment, "mine", {"mine": project / "gone"})
    with pytest.raises(ConfigError, match=r"installation of mine leads to .*/gone, which is not"):
        find_elsewhere(environment.site_packages, prefix=environment.path)


def test_lines_that_run_code_stay_as_they_are(environment: SmallEnvironment) -> None:
    (environment.site_packages / "hook.pth").write_text("import os; os.environ\n")
    found = find_elsewhere(environment.site_packages, prefix=environment.path)
    assert (found.modules, found.directories, found.lines) == ({}, {}, {})
