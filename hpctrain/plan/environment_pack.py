"""How nodes get a packed environment, and what ranks there have instead of the shared one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from posixpath import normpath

from hpctrain.pack.header import ENVIRONMENT, SQUASHFS, EnvironmentPack
from hpctrain.plan.environment_mount import MOUNT_FUNCTIONS

MARK = "hpctrain-pack "
"""Beginning of the lines that nodes print, before their names."""
READY, FAILED, READS = "ready", "failed:", "reads the shared file:"
UNPACKS, ALONE = "cannot mount it:", "gets it from no other node:"
"""What nodes print of themselves."""
STEP = "hpctrain-step "
"""Beginning of the line that has the id of a step."""

SHARED_FILESYSTEMS = (
    *("nfs", "lustre", "gpfs", "beegfs", "fhgfs", "panfs", "ceph", "afs", "smb", "cifs"),
    *("ocfs2", "gfs", "pvfs", "orangefs", "wekafs"),
)
"""How the names of filesystems begin, for the kernel and ``stat``, that many machines mount."""

# That of the distribution. The first on PATH may be in the shared environment.
_PYTHONS = ("/usr/bin/python3", "/usr/libexec/platform-python")

# Ends when it gets SIGUSR1 three times within seconds, and holds a lock until then. srun forwards
# that signal. Slurm may also send it to each process of a step, as before a time limit, and does so
# once: such signals are for the ranks. Only programs of coreutils, findutils, util-linux, tar, and
# what mounts an image: the Python that it brings is not there yet, and the shared one is not to be
# touched.
_SCRIPT = r"""
place=$1 name=$2 sha256=$3 size=$4 total=$5 unpacked=$6 copy=$7 file=$8 starter=$9 patience=${10}
run=${11} offered=${12}
node=${SLURMD_NODENAME:-$(uname -n)}
say() { printf 'hpctrain-pack %s %s\n' "$node" "$*"; }
fail() {
  # Slurm sends SIGUSR1 to every process of the step, and rm would end by it.
  trap '' USR1
  rm -f -- "$copy"
  say "failed: $*"
  exit 66
}
leaving= sleeper=
MOUNT_FUNCTIONS
trap '' HUP INT TERM CONT USR2
times=0 last=0
asked_to_leave() {
  now=$(date +%s)
  [ "$((now - last))" -le 5 ] || times=0
  last=$now times=$((times + 1))
  [ "$times" -ge 3 ] || return
  leaving=yes
  [ -z "$sleeper" ] || kill -KILL "$sleeper"
}
trap asked_to_leave USR1
umask 077
user=$(id -u)
root=$place/hpctrain-packs-$user
[ -d "$place" ] || fail "there is no directory $place"
kind=$(stat -f -c %T -- "$place")
case $kind in
  SHARED_FILESYSTEMS)
    fail "$place is on a filesystem that nodes share ($kind)";;
esac
enter() {
  mkdir -m 700 -- "$root" 2>/dev/null
  cd -P -- "$root" 2>/dev/null || fail "$root cannot be made or entered"
  # In /tmp anyone could have made it, or linked it.
  [ ! -L "$root" ] && [ "$(stat -c '%u %a' .)" = "$user 700" ] ||
    fail "$root is not a directory that only this user can enter (mode 700)"
}
is_same() {
  [ "$(stat -L -c %d:%i "/proc/self/fd/$1" 2>/dev/null)" = "$(stat -c %d:%i "$2" 2>/dev/null)" ]
}
# What a killed run has mounted has to go before its directory can.
discard() {
  if grep -q "/hpctrain-packs-$user/" /proc/self/mounts; then
    for each in "$1" "$1"/*; do
      # A mount whose process was killed is not even found by its name.
      [ -d "$each" ] && [ ! -L "$each" ] && unmount "$each/mount"
    done
  fi
  rm -rf -- "$1"
}
enter
# Of jobs that were killed: no process holds their locks.
for other in *; do
  [ "$other" != "$name" ] && [ -d "$other" ] || continue
  { flock -n -x 8 && is_same 8 "$other" && discard "$other"; } 8<"$other" 2>/dev/null
done
# A job waits so long twice: for sbcast, and for what another one unpacks.
find "$place" -maxdepth 1 -type f -user "$user" -name "hpctrain-packs-$user-*.copy" \
  -mmin "+$((2 * patience / 60 + 15))" -delete 2>/dev/null
undo() {
  trap '' USR1
  discard "$name"
  cd / && rmdir -- "$root" 2>/dev/null
  fail "$@"
}
unpack() {
  for old in "$name"/*; do discard "$old"; done
  # stat translates the names of kinds of files.
  if [ ! -f "$copy" ] || [ -L "$copy" ] ||
    [ "$(stat -c '%u %s' -- "$copy" 2>/dev/null)" != "$user $total" ]; then
    rm -f -- "$copy"
    [ -n "$offered" ] && get_from_nodes || read_shared
  fi
  set -- $(head -c "$size" -- "$copy" | sha256sum)
  [ "$1" = "$sha256" ] || undo "the digest of $file is $1, and was $sha256 when the run was begun"
  if [ -n "$run" ]; then
    chmod 600 -- "$copy" && mv -- "$copy" "$name/image" && : > "$name/ready" ||
      undo "$root is full"
    return
  fi
  room "$unpacked"
  tar -xf "$copy" -C "$name" --no-same-owner || undo "tar cannot unpack it in $root"
  rm -f -- "$copy"
  why=$("$name/$starter" -I -S "$name/hpctrain-pack.py" 2>&1) || undo "${why##*
}"
  : > "$name/ready" || undo "$root is full"
}
# The standard input is a program that gets it, and goes on in the background to give it to others.
get_from_nodes() {
  room "$total"
  why="it has no python3 of its own"
  for python in PYTHONS; do
    [ -x "$python" ] || continue
    { why=$(env -u LD_LIBRARY_PATH "$python" -I -S - "$copy" "$node" 2>&1 >&3 3>&- 9<&-) &&
      [ -e "$copy" ] && return; } 3>&1
    why=${why##*
}
    break
  done
  say "gets it from no other node: ${why:-its python3 has printed nothing}"
  rm -f -- "$copy"
  return 1
}
read_shared() {
  [ "$(stat -L -c %s -- "$file" 2>/dev/null)" = "$total" ] ||
    undo "$file is not there, or has not the $total bytes any more that it had"
  room "$total"
  say "reads the shared file: $file"
  cp -- "$file" "$copy" || undo "$file cannot be copied to $copy"
}
room() {
  free=$(df -Pk . | awk 'NR == 2 { print $4 }')
  [ "${free:-0}" -ge "$(($1 / 1024))" ] ||
    ${2:-undo} "$place has $((free / 1024)) MiB left, and $(($1 / 1048576)) MiB are needed"
}
while :; do
  # Another job may have removed what it left as the last one.
  mkdir -m 700 -- "$name" 2>/dev/null || [ -d "$name" ] || { enter; continue; }
  command exec 9<"$name" || continue
  # Jobs that use it share the lock; one that unpacks it has it alone.
  flock -w "$patience" -s 9 || fail "another job has unpacked it for more than $patience s"
  if is_same 9 "$name" && [ ! -e "$name/ready" ]; then
    flock -n -x 9 && is_same 9 "$name" || { sleep 0.1; continue; }
    [ -e "$name/ready" ] || unpack
    # The lock may be lost while it changes its kind.
    flock -w "$patience" -s 9 || continue
  fi
  is_same 9 "$name" && [ -e "$name/ready" ] && break
done
rm -f -- "$copy"
# Each run mounts the image for itself: what serves the files ends with the step that started it,
# and jobs may not see each other's mounts.
keep_run() {
  own=$name/$run tree=$name/$run/mount
  {
    flock -w "$patience" -x 7 || leave "another job has unpacked it for more than $patience s"
    for other in "$name"/*; do
      [ -d "$other" ] && [ "$other" != "$name/tree" ] || continue
      { flock -n -x 8 && discard "$other"; } 8<"$other" 2>/dev/null
    done
    mkdir -m 700 -- "$own" "$tree" 2>/dev/null && command exec 6<"$own" && flock -n -s 6 ||
      leave "$root is full"
    if ! mount_image "$name/image" "$tree" "$own/log"; then
      say "cannot mount it: $why"
      fuse=
      unpack_image
    fi
  } 7<"$name/image"
  why=$("$tree/$starter" -I -S "$tree/hpctrain-pack.py" "$own" 2>&1) && return
  why=${why##*
}
  leave "${why:-the interpreter in it does not start}"
}
unpack_image() {
  command -v unsquashfs >/dev/null ||
    leave "it cannot be mounted, and there is no unsquashfs to unpack it with: $why"
  if [ ! -e "$name/unpacked" ]; then
    rm -rf -- "$name/tree"
    room "$unpacked" leave
    unsquashfs -no-progress -dest "$name/tree" "$name/image" >"$own/log" 2>&1 ||
      leave "unsquashfs cannot unpack it in $root: $(tail -n 1 -- "$own/log")"
    : > "$name/unpacked"
  fi
  rmdir -- "$tree" && ln -s ../tree "$tree"
}
leave() {
  trap '' USR1
  [ -z "$fuse" ] || kill -KILL "$fuse" 2>/dev/null
  [ -z "$run" ] || discard "$name/$run"
  # The last job that leaves removes it.
  flock -n -x 9 && discard "$name"
  cd / && rmdir -- "$root" 2>/dev/null
  [ -z "$*" ] || fail "$@"
  exit 0
}
[ -z "$run" ] || keep_run
say "ready"
if [ -n "$fuse" ]; then
  sleeper=$fuse
else
  (trap '' USR1; exec sleep 2147483647 6<&- 9<&-) &
  sleeper=$!
fi
while [ -z "$leaving" ]; do
  wait "$sleeper"
  [ -z "$fuse" ] || [ -n "$leaving" ] || kill -0 "$fuse" && continue
  # Ranks that are started again find it.
  sleep 0.2
  unmount "$own/mount"
  mount_image "$name/image" "$own/mount" "$own/log" || leave "it cannot be mounted again: $why"
  sleeper=$fuse
done 2>/dev/null
trap '' USR1
# It ignores what this shell ignores.
kill -KILL "$sleeper" 2>/dev/null
# The signal may have ended an rm above.
rm -f -- "$copy"
leave
"""
for _name, _text in {
    "SHARED_FILESYSTEMS": "|".join(f"{name}*" for name in SHARED_FILESYSTEMS),
    "MOUNT_FUNCTIONS": MOUNT_FUNCTIONS,
    "PYTHONS": " ".join(_PYTHONS),
}.items():
    _SCRIPT = _SCRIPT.replace(_name, _text)


def unpack_argv(
    pack: EnvironmentPack,
    *,
    place: str,
    copy: str,
    patience_s: float,
    run: str,
    is_offered: bool = False,
) -> list[str]:
    """Return the command that unpacks or mounts an environment on a node, and keeps it there.

    Pure; not collective. It prints `MARK`, the name of the node, and `READY`, or why not. It ends
    by SIGUSR1, sent three times.

    Parameters
    ----------
    pack
        The environment.
    place
        Node-local directory.
    copy
        File of the node that holds a copy of the pack, or gets one.
    patience_s
        Seconds that another job of the same user may take to unpack the same environment.
    run
        Name of what the run mounts.
    is_offered
        Whether its standard input is a program that gets the pack from other nodes
        (`hpctrain.pack.node_peer`).
    """
    words = (
        *(place, pack.name, pack.sha256, pack.size, pack.total_bytes, pack.unpacked_bytes),
        *(copy, pack.path, pack.starter, int(patience_s), run if pack.form == SQUASHFS else ""),
        "yes" if is_offered else "",
    )
    return ["sh", "-c", _SCRIPT, "hpctrain-pack", *map(str, words)]


def broadcast_argv(pack: EnvironmentPack, *, copy: str, step: str | None = None) -> list[str]:
    """Return the command that copies a pack to every node of a job, or of a step. Pure."""
    return ["sbcast", *([f"--jobid={step}"] if step else []), pack.path, copy]


def step_argv(seconds: float) -> list[str]:
    """Return the command by which a step of some nodes tells its id, and lasts. Pure."""
    script = f'echo "{STEP}$SLURM_JOB_ID.$SLURM_STEP_ID"; exec sleep "$1"'
    return ["sh", "-c", script, "hpctrain-pack", str(int(seconds))]


def unpacked_at(pack: EnvironmentPack, *, place: str, user: int, run: str) -> str:
    """Return where `unpack_argv` unpacks it, or links what it mounts. Pure; not collective."""
    shared = f"{root_of_packs(place, user=user)}/{pack.name}"
    return f"{shared}/{run}" if pack.form == SQUASHFS else shared


def root_of_packs(place: str, *, user: int) -> str:
    """Return where all packed environments of a user are on a node. Pure; not collective."""
    return f"{place}/hpctrain-packs-{user}"


def node_variables(
    variables: Mapping[str, str], pack: EnvironmentPack, *, unpacked: str
) -> dict[str, str]:
    """Return an environment in which paths of the packed environment are those of the copy.

    Pure; not collective. ``PYTHONPATH`` keeps what is not packed.

    Parameters
    ----------
    variables
        The environment.
    pack
        The packed environment.
    unpacked
        Where the copy is.
    """
    found = dict(variables)
    for name in ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"):
        if name in found:
            parts = found[name].split(":")
            found[name] = ":".join(_moved(part, pack, unpacked) for part in parts)
    if "PYTHONPATH" in found:
        kept = [path for path in found["PYTHONPATH"].split(":") if not is_packed(path, pack)]
        found["PYTHONPATH"] = ":".join(kept)
        if not kept:
            del found["PYTHONPATH"]
    return found


def is_packed(path: str, pack: EnvironmentPack) -> bool:
    """Return whether a directory of modules is in a pack, where its interpreter finds it. Pure."""
    # An interpreter that was started as ../env/bin/python has the dots in its paths.
    return normpath(path) in pack.module_paths


def _moved(path: str, pack: EnvironmentPack, unpacked: str) -> str:
    # An empty entry is the working directory.
    if not path or not PurePath(path).is_relative_to(pack.prefix):
        return path
    relative = PurePath(path).relative_to(pack.prefix)
    return str(PurePath(unpacked, ENVIRONMENT, relative))
