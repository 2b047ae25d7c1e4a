"""A pack of a few files, whose interpreter is a script."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

from hpctrain.pack.archive import Archive
from hpctrain.pack.header import FORMAT, MANIFEST, EnvironmentPack, read_pack
from hpctrain.pack.walk import Member


def write_tiny_pack(path: Path, *, starter: str = "exit 0", **fields: Any) -> EnvironmentPack:
    """Write a pack; its interpreter is a script of the shell."""
    program = path.with_suffix(".sh")
    program.write_text(f"#!/bin/sh\n{starter}\n")
    program.chmod(0o755)
    manifest = {
        "format": FORMAT,
        "hpctrain": "0.1.0",
        "python": "3.11.7",
        "platform": sysconfig.get_platform(),
        "prefix": "/shared/env",
        "base": "/shared/base",
        "interpreter": "env/bin/python",
        "starter": "base/bin/python3.11",
        "further": [],
        "module_paths": ["/shared/env/lib/python3.11/site-packages", "/shared/modules"],
        "distributions": [],
        "site_packages": [],
        "bytes": 1000,
        **fields,
    }
    with open(path, "wb") as file:
        archive = Archive(file)
        archive.add(Member(name=MANIFEST, content=json.dumps(manifest).encode()))
        for name in ("base/bin/python3.11", "env/bin/python"):
            archive.add(Member(name=name, source=program))
        archive.end()
    return read_pack(path)[0]
