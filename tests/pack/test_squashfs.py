"""``hpctrain pack --format squashfs`` of a real environment, and what is mounted of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.json_output import schema
from hpctrain.errors import ConfigError
from hpctrain.pack.header import SQUASHFS, TRAILER_BYTES, digest_of, image_bytes, read_pack
from hpctrain.pack.squashfs import compile_members
from hpctrain.pack.walk import Member
from tests.cli.test_json_output import check
from tests.pack.conftest import SmallEnvironment
from tests.pack.mounts import add_program, mounted_below, programs_without, require_squashfs
from tests.pack.test_pack import ask
from tests.pack.tiny import write_tiny_pack

_SHOW = """
import hpctrain, json, mpi4py, ssl, sys
print(json.dumps([sys.prefix, sys.base_prefix, sys.executable, hpctrain.__file__, sys.path,
                  hpctrain.__spec__.cached, mpi4py.__file__]))
"""

Mount = Callable[[Path, Path], Path]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Return what mounts an image and links it into a directory, as a node does."""
    mounted: list[Path] = []

    def link(image: Path, folder: Path) -> Path:
        tree = folder / "mount"
        tree.mkdir(parents=True)
        subprocess.run(["squashfuse_ll", image, tree], check=True)
        mounted.append(tree)
        pack, _ = read_pack(image)
        words = [tree / pack.starter, "-I", "-S", tree / "hpctrain-pack.py", folder]
        subprocess.run(words, check=True, env={"PATH": os.environ["PATH"]})
        return folder / pack.interpreter

    yield link
    for tree in mounted:
        subprocess.run(["umount", tree], check=True)


def test_it_is_an_image_with_its_manifest_and_digest_behind(
    packed_image: tuple[Path, dict[str, Any]], packed: tuple[Path, dict[str, Any]]
) -> None:
    path, printed = packed_image
    check(printed, schema("pack"))
    pack, manifest = read_pack(path)
    assert (pack.form, printed["form"], packed[1]["form"]) == (SQUASHFS, "squashfs", "tar")
    assert pack.total_bytes == printed["bytes"] == path.stat().st_size
    assert digest_of(path, pack.size) == pack.sha256 == printed["sha256"]
    assert manifest == {**read_pack(packed[0])[1], "compile": []}
    with path.open("rb") as file:
        assert 0 < image_bytes(file) < pack.size
    words = ["unsquashfs", "-lln", path]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lines = [line for line in listed.splitlines() if line[:1] in "-dl"]
    assert {line.split()[1] for line in lines} == {"0/0"}


def test_two_images_of_an_unchanged_environment_are_the_same_bytes(
    small_environment: SmallEnvironment,
    packed_image: tuple[Path, dict[str, Any]],
    tmp_path: Path,
) -> None:
    again = small_environment.pack(tmp_path / "again", "--format", "squashfs")
    assert again["sha256"] == packed_image[1]["sha256"]
    assert (tmp_path / "again").read_bytes() == packed_image[0].read_bytes()


def test_what_is_mounted_uses_nothing_of_the_environment(
    own_environment: SmallEnvironment, tmp_path: Path, mount: Mount
) -> None:
    require_squashfs()
    command = own_environment.path / "bin/show"
    command.write_text(f"#!{own_environment.python}\nimport sys\nprint(sys.prefix)\n")
    command.chmod(0o755)
    image = tmp_path / "e.squashfs"
    printed = own_environment.pack(image, "--format", "squashfs")
    relative = own_environment.site_packages.relative_to(own_environment.path)
    own_environment.path.rename(tmp_path / "gone")
    folder = tmp_path / "node"
    python = mount(image, folder)
    prefix, base, executable, module, path, cached, further = ask(python, _SHOW)
    assert (prefix, executable) == (str(folder / "env"), str(python))
    if printed["base"] is not None:
        assert base == str(folder / "base")
    assert module == str(folder / "env" / relative / "hpctrain/__init__.py")
    assert further.startswith(str(folder / "env"))
    places = (str(folder), "/usr") if printed["base"] is None else (str(folder),)
    assert all(each.startswith(places) for each in path if each)
    # Nothing can be compiled there: the editable installation is compiled already.
    assert Path(cached).is_file()
    assert mounted_below(folder) == [str(folder / "mount")]
    done = subprocess.run([folder / "env/bin/show"], capture_output=True, text=True, env={})
    assert done.stdout == f"{folder}/env\n"


def test_compiled_modules_are_valid_where_they_are_mounted(
    packed_image: tuple[Path, dict[str, Any]], tmp_path: Path, mount: Mount
) -> None:
    python = mount(packed_image[0], tmp_path / "node")
    words = [str(python), "-v", "-c", "import hpctrain.worker.main, cloudpickle"]
    done = subprocess.run(words, capture_output=True, text=True, env={}, cwd="/", check=True)
    assert "matches" in done.stderr
    stale = [line for line in done.stderr.splitlines() if "stale" in line or "wrote" in line]
    assert stale == []


def test_what_is_compiled_is_the_same_in_each_process_and_errors_are_left_out(
    tmp_path: Path,
) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("import os\nVALUE = ('os', 'a text', 1.5)[:2]\n")
    bad.write_text("def\n")
    members = [
        Member(name="with/0", source=tmp_path),
        Member(name="with/0/good.py", source=good),
        Member(name="with/0/bad.py", source=bad),
        Member(name="env/good.py", source=good),
    ]
    found = list(compile_members(members, ["with"]))
    (compiled,) = [member for member in found if member not in members]
    assert compiled.name == f"with/0/__pycache__/good.{sys.implementation.cache_tag}.pyc"
    code = (
        "import sys; from pathlib import Path; from hpctrain.pack.squashfs import _compile; "
        "sys.stdout.buffer.write(_compile(Path(sys.argv[1]), 'with/0/good.py'))"
    )
    for strings in ("", "keep = ['VALUE', 'a text', 'os']; "):
        words = [sys.executable, "-c", strings + code, str(good)]
        done = subprocess.run(words, capture_output=True, check=True, cwd=Path(__file__).parents[2])
        assert done.stdout == compiled.content


@pytest.mark.parametrize(
    ("kept", "why"),
    [(-1, "is cut off"), (-TRAILER_BYTES, "is cut off"), (60, "is not a packed environment")],
)
def test_an_image_that_is_cut_off_is_refused(tmp_path: Path, kept: int, why: str) -> None:
    require_squashfs()
    path = tmp_path / "short.squashfs"
    write_tiny_pack(path, form="squashfs")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=f"short.squashfs .*{why}.* hpctrain pack"):
        read_pack(path)


def test_an_image_of_something_else_is_refused(tmp_path: Path) -> None:
    require_squashfs()
    (tmp_path / "folder").mkdir()
    path = tmp_path / "other.squashfs"
    subprocess.run(["mksquashfs", tmp_path / "folder", path, "-quiet"], check=True)
    with pytest.raises(ConfigError, match="is not a packed environment"):
        read_pack(path)


def test_without_mksquashfs_it_is_refused_at_once(
    small_environment: SmallEnvironment, tmp_path: Path
) -> None:
    few = programs_without(tmp_path / "few", "mksquashfs")
    (tmp_path / "packs").mkdir()
    words = ("hpctrain.cli", "pack", "--format", "squashfs")
    done = small_environment.run(*words, code=2, cwd=tmp_path / "packs", PATH=str(few))
    assert "mksquashfs is not on PATH. Install squashfs-tools 4.5 or later" in done.stderr
    assert os.listdir(tmp_path / "packs") == []


@pytest.mark.parametrize("reads", ["", "cat > /dev/null; "])
def test_a_mksquashfs_that_fails_is_quoted_and_nothing_stays(
    small_environment: SmallEnvironment, tmp_path: Path, reads: str
) -> None:
    fails = f"{reads}echo 'FATAL ERROR: Invalid option -tar'; echo usage; exit 1"
    folder = add_program(tmp_path / "old", "mksquashfs", fails)
    (tmp_path / "packs").mkdir()
    words = ("hpctrain.cli", "pack", "--format", "squashfs")
    path = f"{folder}:{os.environ['PATH']}"
    done = small_environment.run(*words, code=4, cwd=tmp_path / "packs", PATH=path)
    assert "mksquashfs has failed (1): FATAL ERROR: Invalid option -tar" in done.stderr
    assert "squashfs-tools 4.5 or later" in done.stderr
    assert os.listdir(tmp_path / "packs") == []


def test_another_format_is_refused(small_environment: SmallEnvironment, tmp_path: Path) -> None:
    words = ("hpctrain.cli", "pack", "--format", "zip")
    done = small_environment.run(*words, code=2, cwd=tmp_path)
    assert "--format is 'zip'. One of 'tar', 'squashfs' is needed." in done.stderr


def test_its_name_is_that_of_its_format(
    small_environment: SmallEnvironment, tmp_path: Path
) -> None:
    require_squashfs()
    words = ("hpctrain.cli", "pack", "--format", "squashfs")
    done = small_environment.run(*words, cwd=tmp_path)
    assert f"to {tmp_path}/environment.squashfs, an image of squashfs" in done.stdout
    assert os.listdir(tmp_path) == ["environment.squashfs"]
