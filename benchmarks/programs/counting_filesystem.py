"""A filesystem that counts what is asked of it, and answers late, as a shared one does.

::

    python counting_filesystem.py ANSWER CACHED_S DELAY_S PLACE...

It is mounted over each PLACE, which it shows as it is, read-only, by the kernel's own protocol of
FUSE: no library is needed, but root and ``/dev/fuse``. Only processes in its mount namespace see
it, such as those of a node of a virtual cluster, whose client of a shared filesystem it stands for.

What the kernel keeps, as such a client does, is not asked again: names and attributes for CACHED_S
seconds, the content of a file as long as it is unchanged. With CACHED_S 0 nothing is kept, and each
byte is counted each time. Each answer takes DELAY_S seconds; any number is on the way at a time.

The file ``ANSWER.ready`` says that it is mounted. SIGTERM ends it; then ANSWER gets what was asked,
as JSON: requests by kind, and bytes of files.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_INIT_IN = struct.Struct("<IIII")
_INIT_OUT = struct.Struct("<IIIIHHIIHHI7I")
_ATTR = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<QQQQII")
_ATTR_OUT = struct.Struct("<QII")
_OPENED = struct.Struct("<QII")
_READ = struct.Struct("<QQI")
_DIRENT = struct.Struct("<QQII")
_STATFS = struct.Struct("<5Q4I6I")

# Of linux/fuse.h.
_VERSION = (7, 31)
_KINDS = {
    1: "lookup",
    3: "getattr",
    5: "readlink",
    14: "open",
    15: "read",
    17: "statfs",
    18: "release",
    25: "flush",
    27: "opendir",
    28: "readdir",
    29: "releasedir",
    34: "access",
}
_INIT, _FORGET, _BATCH_FORGET, _INTERRUPT, _DESTROY = 26, 2, 42, 36, 38
_DIRECT_IO, _KEEP_CACHE, _CACHE_DIR = 1, 2, 8
# A client of a parallel filesystem sends nothing for these, or does not wait for an answer.
_FREE = frozenset(["release", "flush", "releasedir", ""])
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MNT_DETACH = 1, 2, 4, 2
_BUFFER_BYTES = 2**18
_NUM_THREADS = 8
_ROOT = 1


class Filesystem:
    """One mount.

    Parameters
    ----------
    source
        What it shows.
    cached_s
        Seconds for which the kernel may keep names and attributes.
    delay_s
        Seconds that each answer takes.
    """

    def __init__(self, source: str, *, cached_s: float, delay_s: float) -> None:
        # What is mounted over it later is not in the way of this one.
        self._source = os.open(source, os.O_PATH | os.O_DIRECTORY)
        self._paths = {_ROOT: "."}
        self._nodes = {path: node for node, path in self._paths.items()}
        self._cached_s, self._delay_s = cached_s, delay_s
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._listed: dict[int, list[tuple[str, int, int]]] = {}
        self._device = os.open("/dev/fuse", os.O_RDWR)
        self._answers: dict[str, Callable[[int, bytes], bytes]] = {
            "lookup": self._lookup,
            "getattr": lambda node, _: self._attributes(node),
            "readlink": self._read_link,
            "open": self._open,
            "read": self._read,
            "statfs": lambda *_: _STATFS.pack(*[2**30] * 5, 4096, 255, 4096, 0, *[0] * 6),
            "release": self._release,
            "flush": lambda *_: b"",
            "access": lambda *_: b"",
            "opendir": self._open_directory,
            "readdir": self._read_directory,
            "releasedir": self._release_directory,
        }

    def mount(self, target: str) -> None:
        """Mount it, and answer in threads."""
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"counting", os.fsencode(target), b"fuse.counting", flags, options.encode()):
            raise SystemExit(f"mount: {os.strerror(ctypes.get_errno())}")
        for _ in range(_NUM_THREADS):
            threading.Thread(target=self._serve, daemon=True).start()

    @property
    def counts(self) -> Counter[str]:
        """What was asked so far."""
        with self._lock:
            return Counter(self._counts)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, _BUFFER_BYTES)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                # Unmounted.
                return
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        _, kind, unique, node, *_ = _IN.unpack_from(request)
        body = request[_IN.size :]
        if kind in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            return
        error, answer = 0, b""
        if kind == _INIT:
            _, _, readahead, _ = _INIT_IN.unpack_from(body)
            answer = _INIT_OUT.pack(*_VERSION, readahead, 0, 64, 48, 4096, 1, 0, 0, 0, *[0] * 7)
        elif kind != _DESTROY:
            name = _KINDS.get(kind, "")
            if name not in _FREE:
                if self._delay_s:
                    time.sleep(self._delay_s)
                with self._lock:
                    self._counts[name] += 1
            try:
                error, answer = 0, self._answers[name](node, body)
            except KeyError:
                error = errno.ENOSYS
            except OSError as raised:
                error = raised.errno or errno.EIO
        try:
            head = _OUT.pack(_OUT.size + len(answer), -error, unique)
            os.write(self._device, head + answer)
        except OSError:
            # The process that has asked is gone.
            pass

    def _lookup(self, parent: int, body: bytes) -> bytes:
        path = os.path.join(self._paths[parent], os.fsdecode(body.rstrip(b"\0")))
        try:
            found = self._stat(path)
        except FileNotFoundError:
            if not self._cached_s:
                raise
            # That there is none is kept, too.
            return self._entry(0) + bytes(_ATTR.size)
        with self._lock:
            node = self._nodes.setdefault(path, len(self._nodes) + 1)
            self._paths[node] = path
        return self._entry(node) + _pack(found, node)

    def _entry(self, node: int) -> bytes:
        seconds = int(self._cached_s)
        return _ENTRY.pack(node, 0, seconds, seconds, 0, 0)

    def _attributes(self, node: int) -> bytes:
        found = self._stat(self._paths[node])
        return _ATTR_OUT.pack(int(self._cached_s), 0, 0) + _pack(found, node)

    def _stat(self, path: str) -> os.stat_result:
        return os.stat(path, dir_fd=self._source, follow_symlinks=False)

    def _read_link(self, node: int, body: bytes) -> bytes:
        return os.fsencode(os.readlink(self._paths[node], dir_fd=self._source))

    def _open(self, node: int, body: bytes) -> bytes:
        descriptor = os.open(self._paths[node], os.O_RDONLY, dir_fd=self._source)
        return _OPENED.pack(descriptor, _KEEP_CACHE if self._cached_s else _DIRECT_IO, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        descriptor, offset, size = _READ.unpack_from(body)
        content = os.pread(descriptor, size, offset)
        with self._lock:
            self._counts["bytes"] += len(content)
        return content

    def _release(self, node: int, body: bytes) -> bytes:
        os.close(_READ.unpack_from(body)[0])
        return b""

    def _open_directory(self, node: int, body: bytes) -> bytes:
        found = [(".", node, stat.S_IFDIR), ("..", node, stat.S_IFDIR)]
        descriptor = os.open(self._paths[node], os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._source)
        try:
            with os.scandir(descriptor) as entries:
                found += [(e.name, e.inode(), _type(e)) for e in entries]
        finally:
            os.close(descriptor)
        with self._lock:
            handle = max(self._listed, default=0) + 1
            self._listed[handle] = found
        return _OPENED.pack(handle, (_KEEP_CACHE | _CACHE_DIR) if self._cached_s else 0, 0)

    def _read_directory(self, node: int, body: bytes) -> bytes:
        handle, offset, size = _READ.unpack_from(body)
        answer = b""
        for number, (name, inode, kind) in enumerate(self._listed[handle][offset:], offset + 1):
            encoded = os.fsencode(name)
            entry = _DIRENT.pack(inode, number, len(encoded), kind >> 12) + encoded
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    def _release_directory(self, node: int, body: bytes) -> bytes:
        self._listed.pop(_READ.unpack_from(body)[0], None)
        return b""


def _pack(found: os.stat_result, node: int) -> bytes:
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return _ATTR.pack(
        *(node, found.st_size, found.st_blocks),
        *(t // 10**9 for t in times),
        *(t % 10**9 for t in times),
        *(found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0),
    )


def _type(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    return stat.S_IFDIR if entry.is_dir() else stat.S_IFREG


def main(argv: list[str]) -> None:
    answer, cached_s, delay_s, *places = argv
    mounted = [
        Filesystem(place, cached_s=float(cached_s), delay_s=float(delay_s)) for place in places
    ]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    counts: Counter[str] = Counter()
    try:
        for filesystem, place in zip(mounted, places, strict=True):
            filesystem.mount(place)
        Path(f"{answer}.ready").touch()
        signal.sigwait({signal.SIGTERM})
        for filesystem in mounted:
            counts += filesystem.counts
    finally:
        # One that was mounted over another hides it.
        for place in reversed(places):
            ctypes.CDLL(None).umount2(os.fsencode(place), _MNT_DETACH)
    Path(answer).write_text(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
