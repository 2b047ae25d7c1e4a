"""Make an unpacked environment usable where it lies, or one that is mounted elsewhere.

It runs on each node by the interpreter of the pack itself, without any package and without the
filesystem that the environment was packed from: it may import the standard library alone.
"""

import compileall
import json
import os
import re
import shutil
import subprocess
import sys

_MOST_BYTES = 2**20
_QUESTION = """
import sys
import hpctrain.worker.main
for place in (sys.prefix, hpctrain.__file__):
    print(place)
"""


def main(tree: str, root: str) -> str:
    """Relocate the environment in a directory; return what is wrong, or nothing.

    Where `root` is another directory it gets links to what is in `tree`, which stays as it is.
    """
    with open(os.path.join(tree, "hpctrain-pack.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    if tree != root:
        _link(tree, root)
    environment = os.path.join(root, "env")
    configuration = os.path.join(environment, "pyvenv.cfg")
    if manifest["base"] and os.path.exists(configuration):
        _point_to_base(configuration, os.path.join(root, "base", "bin"))
    _rewrite_scripts(os.path.join(environment, "bin"), manifest["prefix"], environment)
    for place in manifest["compile"]:
        # One process of a node does it, not each rank. What has a syntax error stays as it is.
        compileall.compile_dir(os.path.join(root, place), quiet=2)
    return _try(os.path.join(root, manifest["interpreter"]), tree, root)


def _link(tree: str, root: str) -> None:
    """Link all but what names the place of the environment, or finds others by its own place."""
    for folder, own in ((".", ("env",)), ("env", ("bin", "pyvenv.cfg")), ("env/bin", ())):
        there = os.path.join(root, folder)
        os.makedirs(there, exist_ok=True)
        for entry in os.scandir(os.path.join(tree, folder)):
            target = os.path.join(there, entry.name)
            if entry.name in own:
                if entry.is_file():
                    shutil.copyfile(entry.path, target)
            elif entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
            elif folder == "env/bin" and _is_of_its_place(entry):
                shutil.copy(entry.path, target)
            else:
                os.symlink(entry.path, target)


def _is_of_its_place(entry: "os.DirEntry[str]") -> bool:
    """Return whether a command is to be in the directory where it is called."""
    # An interpreter without pyvenv.cfg looks for its modules beside what its link leads to.
    return entry.is_file() and (entry.name.startswith("python") or _is_text(entry.path))


def _point_to_base(configuration: str, home: str) -> None:
    """Let pyvenv.cfg name the interpreter beside it: only its ``home`` has to be a whole path."""
    with open(configuration, encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read().splitlines()
    # What it was made with is of no use here.
    kept = [line for line in lines if _key(line) not in ("home", "executable", "command")]
    with open(configuration, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write("\n".join([f"home = {home}", *kept]) + "\n")


def _key(line: str) -> str:
    return line.partition("=")[0].strip().lower()


def _rewrite_scripts(folder: str, old: str, new: str) -> None:
    """Replace the path of the environment in its commands: first lines, and ``activate``."""
    pattern = re.compile(re.escape(os.fsencode(old)) + rb"(?![\w.-])")
    # A backslash would begin a reference to a group.
    there = os.fsencode(new).replace(b"\\", b"\\\\")
    for entry in os.scandir(folder):
        if not entry.is_file(follow_symlinks=False) or not _is_text(entry.path):
            continue
        with open(entry.path, "rb") as file:
            content = file.read()
        if not pattern.search(content):
            continue
        changed = pattern.sub(there, content)
        with open(entry.path, "wb") as file:
            file.write(changed)


def _is_text(path: str) -> bool:
    if os.path.getsize(path) > _MOST_BYTES:
        return False
    with open(path, "rb") as file:
        return b"\0" not in file.read()


def _try(interpreter: str, tree: str, root: str) -> str:
    """Start the interpreter; return what is wrong with it, or nothing."""
    done = subprocess.run(
        [interpreter, "-I", "-c", _QUESTION], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return f"{interpreter} does not start there: {lines[-1] if lines else done.returncode}"
    packed = tuple(os.path.realpath(place) + os.sep for place in (tree, root))
    for place in done.stdout.splitlines():
        if not os.path.realpath(place).startswith(packed):
            return f"{interpreter} uses {place}, which is not in the pack"
    return ""


if __name__ == "__main__":
    own = os.path.dirname(os.path.abspath(__file__))
    sys.exit(main(own, os.path.abspath((sys.argv[1:] or [own])[0])) or 0)
