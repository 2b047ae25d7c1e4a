"""``hpctrain pack`` of a real environment, and the copy where another machine would have it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.json_output import schema
from hpctrain.cli.pack import render
from hpctrain.errors import ConfigError
from hpctrain.pack.contents import find_environment
from hpctrain.pack.header import EnvironmentPack, read_pack
from hpctrain.pack.writer import Packed
from tests.cli.test_json_output import check
from tests.pack.conftest import SmallEnvironment

_SHOW = """
import hpctrain, json, ssl, sys
print(json.dumps([sys.prefix, sys.base_prefix, sys.executable, hpctrain.__file__, sys.path]))
"""


def unpack(path: Path, folder: Path) -> Path:
    """Unpack as a node does; return the interpreter."""
    folder.mkdir()
    subprocess.run(["tar", "-xf", path, "-C", folder, "--no-same-owner"], check=True)
    pack, _ = read_pack(path)
    relocate = [str(folder / pack.starter), "-I", "-S", str(folder / "hpctrain-pack.py")]
    subprocess.run(relocate, check=True, env={"PATH": os.environ["PATH"]})
    return folder / pack.interpreter


def ask(python: Path, code: str) -> Any:
    """Return what an interpreter prints, as JSON."""
    done = subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, env={}, cwd="/", check=True
    )
    return json.loads(done.stdout)


def test_two_packs_of_an_unchanged_environment_are_the_same_bytes(
    small_environment: SmallEnvironment, packed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    check(packed[1], schema("pack"))
    # However the interpreter is started.
    dotted = SmallEnvironment(small_environment.path / "lib/..")
    again = dotted.pack(tmp_path / "again.tar")
    assert again["sha256"] == packed[1]["sha256"]
    first, second = packed[0].read_bytes(), (tmp_path / "again.tar").read_bytes()
    assert first == second


def test_a_copy_elsewhere_uses_nothing_of_the_environment(
    own_environment: SmallEnvironment, tmp_path: Path
) -> None:
    # A command of an environment begins with the path of its interpreter.
    command = own_environment.path / "bin/show"
    command.write_text(
        f"#!{own_environment.python}\nimport sys\nprint(sys.prefix, {str(tmp_path / 'env2')!r})\n"
    )
    command.chmod(0o755)
    archive = tmp_path / "e.tar"
    packed = own_environment.pack(archive)
    relative = own_environment.site_packages.relative_to(own_environment.path)
    own_environment.path.rename(tmp_path / "gone")
    folder = tmp_path / "copy"
    python = unpack(archive, folder)
    prefix, base, executable, module, path = ask(python, _SHOW)
    assert (prefix, executable) == (str(folder / "env"), str(python))
    if packed["base"] is not None:
        assert base == str(folder / "base")
    assert module == str(folder / "env" / relative / "hpctrain/__init__.py")
    places = (str(folder), "/usr") if packed["base"] is None else (str(folder),)
    assert all(each.startswith(places) for each in path if each)
    done = subprocess.run([folder / "env/bin/show"], capture_output=True, text=True, env={})
    assert done.stdout == f"{folder}/env {folder.parent}/env2\n"


def test_further_directories_and_odd_names_are_packed(
    own_environment: SmallEnvironment, tmp_path: Path
) -> None:
    modules = tmp_path / "my modules"
    modules.mkdir()
    (modules / "mine.py").write_text("VALUE = 7\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs.py").write_text("VALUE = 8\n")
    folder = own_environment.site_packages
    # A link that leads out of the environment is followed, one to the system is not.
    (folder / "linked").symlink_to(outside)
    (folder / "of_system").symlink_to("/etc/hostname")
    (folder / "dangling").symlink_to(tmp_path / "nothing")
    odd = [b"new\nline.txt", b"not-\xff-utf8.txt", b"x" * 200 + b".txt"]
    for name in odd:
        (folder / os.fsdecode(name)).write_text("odd")
    inside = own_environment.path / "src"
    inside.mkdir()
    (inside / "within.py").write_text("VALUE = 9\n")
    (folder / "within.pth").write_text(f"{inside}\n")
    archive = tmp_path / "e.tar"
    own_environment.pack(archive, "--with", str(modules))
    relative = own_environment.site_packages.relative_to(own_environment.path)
    shutil.rmtree(own_environment.path)
    shutil.rmtree(modules)
    shutil.rmtree(outside)
    python = unpack(archive, tmp_path / "copy")
    code = (
        "import json, mine, within, linked.theirs as t; "
        "print(json.dumps([mine.VALUE, within.VALUE, t.VALUE, mine.__file__, within.__file__]))"
    )
    *values, first, second = ask(python, code)
    assert values == [7, 9, 8]
    assert first == str(tmp_path / "copy/with/0/mine.py")
    assert second == str(tmp_path / "copy/env/src/within.py")
    there = tmp_path / "copy/env" / relative
    assert os.readlink(there / "of_system") == "/etc/hostname"
    assert set(odd) <= {os.fsencode(name) for name in os.listdir(there)}


def test_a_file_that_exists_is_kept_unless_force_is_given(
    small_environment: SmallEnvironment, tmp_path: Path
) -> None:
    path = tmp_path / "e.tar"
    path.write_text("precious")
    done = small_environment.run("hpctrain.cli", "pack", "-o", str(path), code=2)
    assert "e.tar exists. Choose another -o FILE, or replace it with --force." in done.stderr
    assert path.read_text() == "precious"
    small_environment.pack(path, "--force")
    assert read_pack(path)[0].path == str(path)
    assert os.listdir(tmp_path) == ["e.tar"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-o", "{env}/e.tar"], "which is packed: it would contain itself"),
        (["-o", "{tmp}"], "is a directory. Name a file"),
        (["-o", "{tmp}/none/e.tar"], "none is not a directory"),
        (["--with", "{tmp}/none"], "--with {tmp}/none: it is not a directory"),
        (["--with", "{env}/lib"], "is packed anyway"),
    ],
)
def test_what_cannot_be_packed_is_refused_at_once(
    small_environment: SmallEnvironment, tmp_path: Path, words: list[str], why: str
) -> None:
    places = {"env": small_environment.path, "tmp": tmp_path}
    given = [word.format(**places) for word in words]
    done = small_environment.run("hpctrain.cli", "pack", *given, code=2, cwd=tmp_path)
    assert why.format(**places) in done.stderr
    assert os.listdir(tmp_path) == []


def test_the_python_of_the_machine_is_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/usr")
    with pytest.raises(ConfigError, match=r"not an environment. Make one with python3 -m venv"):
        find_environment(())


def test_an_hpctrain_of_elsewhere_is_refused(
    small_environment: SmallEnvironment, tmp_path: Path
) -> None:
    shutil.copytree(Path(__file__).parents[2] / "hpctrain", tmp_path / "own/hpctrain")
    words = ["hpctrain.cli", "pack", "-o", str(tmp_path / "e.tar")]
    done = small_environment.run(*words, code=2, PYTHONPATH=str(tmp_path / "own"))
    assert f"hpctrain itself is imported from {tmp_path}/own/hpctrain" in done.stderr


def test_a_full_disk_leaves_nothing_behind(
    small_environment: SmallEnvironment, tmp_path: Path
) -> None:
    # Without room, a write fails: here it may not exceed a limit, as with a quota.
    code = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20)); "
        "sys.argv[0] = 'hpctrain'; runpy.run_module('hpctrain.cli', run_name='__main__')"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [small_environment.python, "-c", code, "pack", "-o", "e.tar"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 4
    assert f"hpctrain: {tmp_path}/e.tar cannot be used: File too large." in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv of util-linux on PATH")
def test_a_file_that_cannot_be_read_is_named(
    own_environment: SmallEnvironment, tmp_path: Path
) -> None:
    secret = own_environment.site_packages / "secret.txt"
    secret.write_text("x")
    secret.chmod(0)
    # root reads any file, unless it gives that up.
    as_user = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [
            *(as_user if os.geteuid() == 0 else []),
            *(own_environment.python, "-m", "hpctrain.cli", "pack", "-o", tmp_path / "e.tar"),
        ],
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
    )
    assert done.returncode == 2, done.stderr
    assert f"{secret} belongs to the environment and cannot be read: Permission" in done.stderr
    assert not [name for name in os.listdir(tmp_path) if "tar" in name]


def test_a_link_that_leads_back_is_refused(
    own_environment: SmallEnvironment, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "again").symlink_to(outside)
    (own_environment.site_packages / "linked").symlink_to(outside)
    words = ["hpctrain.cli", "pack", "-o", str(tmp_path / "e.tar")]
    done = own_environment.run(*words, code=2)
    assert "linked/again leads back to a directory that contains it" in done.stderr


def test_what_stays_where_it_is_is_listed(
    small_environment: SmallEnvironment, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    words = ["hpctrain.cli", "pack", "-o", str(tmp_path / "e.tar"), "--json"]
    done = small_environment.run(*words, PYTHONPATH=f"{other}:{tmp_path}/none")
    assert json.loads(done.stdout)["not_packed"] == [str(other)]


def test_the_text_names_all_that_was_packed() -> None:
    pack = EnvironmentPack(
        path="/home/me/environment.tar",
        size=3 * 2**30,
        sha256="ab" * 32,
        unpacked_bytes=3 * 2**30,
        python="3.11.7",
        hpctrain="0.1.0",
        prefix="/home/me/env",
        interpreter="env/bin/python",
        starter="base/bin/python3.11",
        base="/apps/python/3.11",
        further=("/home/me/modules",),
        module_paths=(),
    )
    packed = Packed(
        pack=pack, num_files=41_000, editable={"mine": "/home/me/mine"}, node_python=None
    )
    assert render(packed, ["/home/me/other"]).splitlines() == [
        "packed /home/me/env",
        "to /home/me/environment.tar",
        "41000 files, 3 GiB, Python 3.11.7",
        f"sha256 {'ab' * 32}",
        "with the interpreter of /apps/python/3.11",
        "with /home/me/modules",
        "with mine, editable, from /home/me/mine",
        "not packed: /home/me/other",
    ]


def test_a_pack_has_the_times_of_sources_so_that_compiled_modules_are_valid(
    small_environment: SmallEnvironment, packed: tuple[Path, dict[str, Any]]
) -> None:
    source = small_environment.site_packages / "cloudpickle/cloudpickle.py"
    name = f"env/{source.relative_to(small_environment.path)}"
    with tarfile.open(packed[0]) as archive:
        assert archive.getmember(name).mtime == int(source.stat().st_mtime)
