#!/usr/bin/env python3
"""Stands for ``apptainer``, by bubblewrap: the options that hpctrain gives, and no more.

::

    apptainer exec [--nv] --pwd DIRECTORY [--bind SOURCE:TARGET[:MODE]]... IMAGE COMMAND...

As with Apptainer the root is the image, a directory here, and beside it there is what is mounted,
``/dev``, ``/proc``, ``/sys`` and ``/tmp``. Processes, network and environment are those outside.
"""

import os
import sys


def main(argv):
    """Replace this process with bubblewrap."""
    if argv[:1] != ["exec"]:
        sys.exit(f"FATAL:   not known here: {argv}")
    words, cwd, mounts = argv[1:], "/", []
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--pwd":
            cwd = words.pop(0)
        elif option == "--bind":
            mounts.append(words.pop(0))
        elif option != "--nv":
            sys.exit(f"FATAL:   not known here: {option}")
    image, *command = words
    if not os.path.isdir(image):
        sys.exit(f"FATAL:   could not open image {image}: no such file or directory")
    bwrap = ["bwrap", "--bind", image, "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"]
    bwrap += ["--ro-bind", "/sys", "/sys", "--chdir", cwd]
    for mount in ["/tmp:/tmp", *mounts]:
        source, target, *mode = mount.split(":")
        if not os.path.exists(source):
            sys.exit(
                f"FATAL:   container creation failed: mount {source}->{target} error: mount "
                f"source {source} doesn't exist"
            )
        bwrap += ["--ro-bind" if mode == ["ro"] else "--bind", source, target]
    os.execvp(bwrap[0], [*bwrap, "--", *command])


if __name__ == "__main__":
    main(sys.argv[1:])
