"""A pack of a few files, whose interpreter is a script."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

from hpctrain.pack.header import FORMAT, MANIFEST, TAR, EnvironmentPack, read_pack
from hpctrain.pack.walk import Member
from hpctrain.pack.writer import write_members


def write_tiny_pack(
    path: Path, *, starter: str = "exit 0", form: str = TAR, **fields: Any
) -> EnvironmentPack:
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
    names = ("base/bin/python3.11", "env/bin/python")
    members = [
        Member(name=MANIFEST, content=json.dumps(manifest).encode()),
        *(Member(name=name, source=program) for name in names),
    ]
    path.unlink(missing_ok=True)
    write_members(path, members, form=form)
    return read_pack(path)[0]
