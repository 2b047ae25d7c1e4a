"""Which packed environment a run gets, and what is refused before anything is submitted."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError, Container, SlurmConfig
from hpctrain.launch.environment_pack import plan_environment_pack, ranks_path_with_pack
from hpctrain.pack.header import EnvironmentPack
from hpctrain.version import __version__
from tests.pack.tiny import write_tiny_pack


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with an environment, in which this process is."""
    (tmp_path / "env/site-packages/torch-2.9.dist-info").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    return tmp_path


def write(place: Path, **fields: Any) -> Path:
    """Write a pack of the environment there."""
    found = {
        "prefix": str(place / "env"),
        "python": platform.python_version(),
        "hpctrain": __version__,
        "distributions": ["torch-2.9"],
        "site_packages": [str(place / "env/site-packages")],
        **fields,
    }
    path = place / "environment.tar"
    write_tiny_pack(path, **found)
    return path


def plan(path: Path | str, launcher: str = "slurm", **fields: Any) -> EnvironmentPack | None:
    return plan_environment_pack(
        SlurmConfig(environment_pack=str(path), **fields), launcher=launcher
    )


def test_a_run_keeps_the_digest_and_the_whole_path(place: Path) -> None:
    path = write(place)
    planned = plan("environment.tar", environment_pack_dir="/dev/shm/")
    assert planned is not None
    assert (planned.path, planned.directory) == (str(path), "/dev/shm")
    assert len(planned.sha256) == 64
    assert plan(path, "allocation") is not None


def test_outside_of_slurm_ranks_have_the_environment_as_it_is(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert plan(place / "none.tar", "local") is None
    assert "environment_pack=...) is for jobs of Slurm. Ranks start by 'local'" in (
        capfd.readouterr().err
    )
    assert plan_environment_pack(SlurmConfig(), launcher="slurm") is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"prefix": "/another/env"}, r"was packed from /another/env, and this script runs in "),
        ({"python": "2.7.18"}, r"has Python 2.7.18, and this script .* hpctrain pack -o"),
        ({"hpctrain": "0.0.1"}, r"has hpctrain 0.0.1, and this script .* hpctrain pack -o"),
        (
            {"platform": "linux-mips"},
            r"has programs of linux-mips, and this script .* hpctrain pack",
        ),
        (
            {"distributions": ["torch-2.8", "a-1", "b-1", "c-1"]},
            r"env has changed since it was packed in .*: then a-1, then b-1, then c-1, then "
            r"torch-2.8 and 1 more. Pack it again",
        ),
    ],
)
def test_a_pack_of_another_environment_is_refused(
    place: Path, fields: dict[str, Any], why: str
) -> None:
    path = write(place, **fields)
    with pytest.raises(ConfigError, match=why):
        plan(path)


def test_a_pack_that_is_not_there_is_named(place: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.tar cannot be read: No such file"):
        plan("none.tar")


def test_ranks_find_by_themselves_what_is_packed(place: Path) -> None:
    packed = plan(write(place, module_paths=["/env/site-packages", "/with"]))
    paths = ("/home/me/script", "/env/site-packages", "/with", "/with/deeper")
    assert ranks_path_with_pack(paths, packed) == ("/home/me/script", "/with/deeper")
    assert ranks_path_with_pack(paths, None) == paths


def test_an_image_and_a_packed_environment_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"An image is one file already: leave environment_pack"):
        SlurmConfig(environment_pack="e.tar", container=Container(image="torch.sif"))


@pytest.mark.parametrize("directory", ["scratch", "", "~/x", "/a\nb"])
def test_the_directory_of_a_node_is_a_whole_path(directory: str) -> None:
    with pytest.raises(ConfigError, match=r"environment_pack_dir"):
        SlurmConfig(environment_pack_dir=directory)
