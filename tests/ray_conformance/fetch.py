"""Copy what ``sources.json`` lists out of git clones: the code is not ours and is not kept here.

``python -m tests.ray_conformance.fetch [--code DIR] ray-project/ray=CLONE ...``; a repository
without a clone is cloned from GitHub, without its history's files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import tempfile
from pathlib import Path


def main() -> None:
    """Copy all listed files."""
    options = argparse.ArgumentParser(description=__doc__)
    home = Path("~/.cache/hpctrain/ray_conformance").expanduser()
    options.add_argument("--code", type=Path, default=home)
    options.add_argument("clones", nargs="*", metavar="REPOSITORY=CLONE")
    chosen = options.parse_args()
    clones = dict(one.split("=", 1) for one in chosen.clones)
    sources = json.loads(Path(__file__).with_name("sources.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        for source in sources:
            repository = source["repository"]
            if repository not in clones:
                clones[repository] = f"{scratch}/{repository}"
                url = f"https://github.com/{repository}"
                clone = ["git", "clone", "--quiet", "--bare", "--filter=blob:none", url]
                subprocess.run([*clone, clones[repository]], check=True)
            show = ["git", "-C", clones[repository], "show", f"{source['commit']}:{source['path']}"]
            raw = subprocess.run(show, check=True, capture_output=True).stdout
            if hashlib.sha256(raw).hexdigest() != source["sha256"]:
                raise SystemExit(f"{source['path']} of {source['commit']} has another digest")
            target = chosen.code / repository / source["commit"] / source["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(raw)


if __name__ == "__main__":
    main()
