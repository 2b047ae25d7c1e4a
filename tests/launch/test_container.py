from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpctrain import ConfigError, Container
from hpctrain.launch.container import is_of_interpreter, plan_container, ranks_path

IMAGE = Container(image="docker://torch")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with storage and work, in the latter of which this process is."""
    for name in ("storage/one", "work/modules", "env/lib/python3.11/site-packages"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    of_script = [str(tmp_path / "work/modules"), str(tmp_path / "env/lib/python3.11/site-packages")]
    monkeypatch.setattr(sys, "path", [*of_script, "", "/not/there"])
    # What is in /tmp is mounted with it.
    monkeypatch.setattr("hpctrain.launch.container._TMP", "/dev/shm")
    return tmp_path


def plan(places: Path, container: Container = IMAGE, launcher: str = "slurm") -> Container | None:
    return plan_container(container, launcher=launcher, run_dir=places / "storage/one")


def test_storage_work_and_modules_are_mounted_and_what_lies_in_them_is_not_again(places: Path):
    planned = plan(places, Container(image="docker://torch", mounts=["/data:/inside"]))
    assert planned is not None
    assert planned.mounts == (
        "/dev/shm:/dev/shm",
        f"{places}/storage:{places}/storage",
        f"{places}/work:{places}/work",
        "/data:/inside",
    )


def test_planning_again_mounts_nothing_twice(places: Path):
    once = plan(places)
    assert once is not None
    assert plan(places, once) == once


def test_a_link_and_what_it_leads_to_are_mounted(places: Path, monkeypatch: pytest.MonkeyPatch):
    (places / "link").symlink_to(places / "storage")
    planned = plan_container(IMAGE, launcher="slurm", run_dir=places / "link/one")
    assert planned is not None
    assert {f"{places}/{name}:{places}/{name}" for name in ("link", "storage")} <= {*planned.mounts}


def test_the_checkpoint_that_a_run_begins_with_is_mounted(places: Path):
    other = places / "other/000003"
    planned = plan_container(
        IMAGE, launcher="allocation", run_dir=places / "storage/one", resume_from=other
    )
    assert planned is not None
    assert f"{other}:{other}" in planned.mounts


def test_the_environment_of_the_interpreter_outside_is_mounted_if_it_is_to_run(
    places: Path, monkeypatch: pytest.MonkeyPatch
):
    # A checkout on it may have the environment inside, which is mounted with it.
    monkeypatch.setattr(sys, "path", [p for p in sys.path if is_of_interpreter(p)])
    outside, own = plan(places), plan(places, Container(image="a", python=sys.executable))
    assert outside is not None
    assert own is not None
    # An environment may lie in the checkout that is installed in it, and is mounted with it.
    places_of = {Path(sys.prefix), *Path(sys.prefix).parents}
    assert places_of & {Path(mount.split(":")[1]) for mount in own.mounts}
    assert not places_of & {Path(mount.split(":")[1]) for mount in outside.mounts}


@pytest.mark.parametrize("launcher", ["local", "mpiexec", "spmd", "inline"])
def test_without_slurm_ranks_run_outside_and_that_is_logged(places: Path, capsys, launcher: str):
    assert plan(places, launcher=launcher) is None
    said = capsys.readouterr().err
    assert f"Ranks start by {launcher!r} here, and run in {sys.executable}." in said


def test_a_path_that_no_runtime_can_mount_is_refused(places: Path):
    with pytest.raises(ConfigError, match=r"has to mount '.*/a:b', and no option of a container"):
        plan_container(IMAGE, launcher="slurm", run_dir=places / "a:b/one")


def test_what_this_machine_does_not_have_is_warned_of(places: Path, capsys):
    plan(places, Container(image="no.sif", mounts=["/nowhere/data"]))
    said = capsys.readouterr().err
    assert "warning: Container(image=...): this machine has no no.sif." in said
    assert "warning: Container(mounts=...): this machine has no /nowhere/data." in said


def test_inside_a_container_ranks_import_the_packages_of_its_interpreter():
    path = ["/work", "/env/lib/python3.11", "/env/lib/python3.11/site-packages", "/env/modules"]
    assert ranks_path(path, IMAGE) == ("/work", "/env/modules")
    assert ranks_path(path, None) == tuple(path)
