"""How nodes get a packed environment, and what ranks there have instead of the shared one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from posixpath import normpath

from hpctrain.pack.header import ENVIRONMENT, EnvironmentPack

MARK = "hpctrain-pack "
"""Beginning of the lines that nodes print, before their names."""
READY, FAILED, READS = "ready", "failed:", "reads the shared file:"
"""What nodes print of themselves."""

SHARED_FILESYSTEMS = (
    *("nfs", "lustre", "gpfs", "beegfs", "fhgfs", "panfs", "ceph", "afs", "smb", "cifs"),
    *("ocfs2", "gfs", "pvfs", "orangefs", "wekafs"),
)
"""How the names of filesystems begin, for the kernel and ``stat``, that many machines mount."""

# Ends when it gets SIGUSR1, and holds a lock until then. Signals of a preemption, and the warning
# before the time limit, are for the ranks. Only programs of coreutils, findutils, util-linux, tar:
# the Python that it brings is not there yet, and the shared one is not to be touched.
_SCRIPT = r"""
place=$1 name=$2 sha256=$3 size=$4 total=$5 unpacked=$6 copy=$7 file=$8 starter=$9 patience=${10}
node=${SLURMD_NODENAME:-$(uname -n)}
say() { printf 'hpctrain-pack %s %s\n' "$node" "$*"; }
fail() { say "failed: $*"; exit 66; }
leaving= sleeper=
trap '' TERM CONT USR2
trap 'leaving=yes' USR1
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
enter
# Of jobs that were killed: no process holds their locks.
for other in *; do
  [ "$other" != "$name" ] && [ -d "$other" ] || continue
  { flock -n -x 8 && is_same 8 "$other" && rm -rf -- "$other"; } 8<"$other" 2>/dev/null
done
find "$place" -maxdepth 1 -type f -user "$user" -name "hpctrain-packs-$user-*.copy" -mmin +15 \
  -delete 2>/dev/null
undo() {
  # Slurm sends it to every process of the step, and rm would end by it.
  trap '' USR1
  rm -rf -- "$copy" "$name"
  cd / && rmdir -- "$root" 2>/dev/null
  fail "$@"
}
unpack() {
  find "$name" -mindepth 1 -delete
  if [ "$(stat -c '%F %u %s' -- "$copy" 2>/dev/null)" != "regular file $user $total" ]; then
    rm -f -- "$copy"
    [ "$(stat -L -c %s -- "$file" 2>/dev/null)" = "$total" ] ||
      undo "$file is not there, or has not the $total bytes any more that it had"
    room "$total"
    say "reads the shared file: $file"
    cp -- "$file" "$copy" || undo "$file cannot be copied to $copy"
  fi
  set -- $(head -c "$size" -- "$copy" | sha256sum)
  [ "$1" = "$sha256" ] || undo "the digest of $file is $1, and was $sha256 when the run was begun"
  room "$unpacked"
  tar -xf "$copy" -C "$name" --no-same-owner || undo "tar cannot unpack it in $root"
  rm -f -- "$copy"
  why=$("$name/$starter" -I -S "$name/hpctrain-pack.py" 2>&1) || undo "${why##*
}"
  : > "$name/ready" || undo "$root is full"
}
room() {
  free=$(df -Pk . | awk 'NR == 2 { print $4 }')
  [ "${free:-0}" -ge "$(($1 / 1024))" ] ||
    undo "$place has $((free / 1024)) MiB left, and $(($1 / 1048576)) MiB are needed"
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
say "ready"
sleep 2147483647 9<&- &
sleeper=$!
trap 'leaving=yes; kill -KILL "$sleeper"' USR1
while [ -z "$leaving" ]; do wait "$sleeper"; done 2>/dev/null
trap '' USR1
# It ignores what this shell ignores.
kill -KILL "$sleeper" 2>/dev/null
# The signal may have ended an rm above.
rm -f -- "$copy"
# The last job that leaves removes it.
flock -n -x 9 && rm -rf -- "$name"
cd / && rmdir -- "$root" 2>/dev/null
exit 0
""".replace("SHARED_FILESYSTEMS", "|".join(f"{name}*" for name in SHARED_FILESYSTEMS))


def unpack_argv(pack: EnvironmentPack, *, place: str, copy: str, patience_s: float) -> list[str]:
    """Return the command that unpacks an environment on a node, and keeps it until SIGUSR1.

    Pure; not collective. It prints `MARK`, the name of the node, and `READY`, or why not.

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
    """
    words = (
        *(place, pack.name, pack.sha256, pack.size, pack.total_bytes, pack.unpacked_bytes),
        *(copy, pack.path, pack.starter, int(patience_s)),
    )
    return ["sh", "-c", _SCRIPT, "hpctrain-pack", *map(str, words)]


def broadcast_argv(pack: EnvironmentPack, *, copy: str) -> list[str]:
    """Return the command that copies a pack to every node of a job. Pure; not collective."""
    return ["sbcast", pack.path, copy]


def unpacked_at(pack: EnvironmentPack, *, place: str, user: int) -> str:
    """Return where `unpack_argv` unpacks it. Pure; not collective."""
    return f"{root_of_packs(place, user=user)}/{pack.name}"


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
