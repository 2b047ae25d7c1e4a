"""How a node mounts the image of a packed environment, without a privilege. Pure."""

from __future__ import annotations

# Apptainer and Singularity bring their own, beside their programs.
_PROGRAMS = (
    *("squashfuse_ll", "squashfuse"),
    *(
        f"{place}/libexec/{name}/bin/squashfuse_ll"
        for place in ("/usr", "/usr/local", "/opt/apptainer")
        for name in ("apptainer", "singularity")
    ),
)
_LOOKS, _PAUSE_S = 200, 0.05

# The process that serves the files is of the step, and ends with it: with the shell that starts
# it where setpriv can see to that, else by Slurm. It must not end by SIGUSR1, which Slurm sends to
# every process of a step. What it leaves when it is killed is a mount whose every use fails.
MOUNT_FUNCTIONS = rf"""
fuse= why=
mount_image() {{ # IMAGE DIRECTORY LOG
  dies= why="there is no squashfuse on PATH"
  setpriv --pdeathsig KILL true 2>/dev/null && dies='setpriv --pdeathsig KILL'
  for program in {" ".join(_PROGRAMS)}; do
    command -v "$program" >/dev/null || continue
    (trap '' USR1; exec $dies "$program" -f -o ro "$1" "$2") >"$3" 2>&1 9<&- 7<&- 6<&- &
    fuse=$! looks=0
    while kill -0 "$fuse" && [ "$looks" -lt {_LOOKS} ]; do
      [ -e "$2/hpctrain-pack.json" ] && return 0
      looks=$((looks + 1))
      sleep {_PAUSE_S}
    done 2>/dev/null
    late=
    kill -0 "$fuse" 2>/dev/null && late="it had not mounted it after {_LOOKS * _PAUSE_S:g} s"
    kill -KILL "$fuse" 2>/dev/null
    unmount "$2"
    why=$(tail -n 1 -- "$3")
    why="${{program##*/}}: ${{late:-${{why:-it printed nothing}}}}"
  done
  return 1
}}
unmount() {{ # DIRECTORY
  fusermount3 -u -z "$1" || fusermount -u -z "$1" || umount -l "$1"
}} 2>/dev/null
"""

_TEST = rf"""{MOUNT_FUNCTIONS}
unpacks=no
command -v unsquashfs >/dev/null && unpacks=yes
if mount_image "$1" "$2/mount" "$2/log"; then
  kill -KILL "$fuse"
  unmount "$2/mount"
  why=
fi
printf '%s %s\n' "$unpacks" "$why"
"""


def mount_test_argv(image: str, folder: str) -> list[str]:
    """Return the command that mounts an image for a moment, and says why not.

    Pure; not collective. It prints whether this machine could unpack the image, ``yes`` or ``no``,
    and why it cannot mount it, if so.

    Parameters
    ----------
    image
        The image.
    folder
        An own directory with an empty directory ``mount``.
    """
    return ["sh", "-c", _TEST, "hpctrain-pack", image, folder]
