"""Digests of pickles that stay the same as long as what was pickled does.

Two processes that run the same script pickle the same function to different bytes: sets are in the
order of their hashes, which differ with PYTHONHASHSEED; cloudpickle gives each class of the main
script a random tracker id; and code records its file and line. So a pickle is not hashed byte by
byte: its opcodes are interpreted, without importing or calling anything, and the resulting tree is
hashed.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
from collections.abc import Iterator
from typing import Any

# Differences between equal functions: the path of the script, whether another script runs it (then
# its __package__ is ""), the line of a class, attributes in the order of a set (both new in Python
# 3.13), and the other imported modules.
_IGNORED_KEYS = frozenset(
    [
        "__file__",
        "__package__",
        "__firstlineno__",
        "__static_attributes__",
        "_cloudpickle_submodules",
    ]
)
# Arguments of types.CodeType that say where the code was: file, first line, line table. Python 3.11
# has two more arguments than 3.10.
_PLACE_IN_CODE = {16: (10, 12, 13), 18: (10, 13, 14)}
# Position of the random tracker id among the arguments of cloudpickle's functions.
_TRACKER_ID = {"_make_skeleton_class": 4, "_make_skeleton_enum": 5}
_MARK = object()


class Node:
    """Something that a pickle builds."""

    __slots__ = ("kind", "parts")

    def __init__(self, kind: str, parts: list[Any] | None = None) -> None:
        self.kind = kind
        self.parts = [] if parts is None else parts


def digest_pickle(content: bytes) -> bytes:
    """Return a digest of what a pickle builds. Not collective.

    A pickle that cannot be interpreted (of another protocol, for example) is hashed byte by byte.

    Examples
    --------
    >>> one, other = pickle.dumps({"a", "b"}), pickle.dumps({"b", "a"})
    >>> digest_pickle(one) == digest_pickle(other)
    True
    >>> digest_pickle(one) == digest_pickle(pickle.dumps(["a", "b"]))
    False
    """
    try:
        return _Digester().digest(build_pickle(content))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return hashlib.sha256(content).digest()


def build_pickle(content: bytes) -> Any:
    """Return the tree that a pickle builds: nodes, and plain values as leaves.

    Not collective.

    Raises
    ------
    ValueError, LookupError, TypeError, AttributeError, RecursionError
        If it cannot be interpreted.
    """
    return _build(io.BytesIO(content), memoryview(content))


def _build(stream: io.BytesIO, whole: memoryview) -> Any:
    """Return the tree that the next pickle of a stream builds; `whole` is the stream's content."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for name, argument in _operations(stream, whole):
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return stack.pop()
        if name == "MARK":
            stack.append(_MARK)
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _CONTAINERS:
            stack.append(Node(_CONTAINERS[name]))
        elif name in _TAKES:
            kind, count = _TAKES[name]
            parts = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            if name == "REDUCE" and _is_global(parts[0], "torch.storage", "_load_from_bytes"):
                parts[1] = _without_addresses(parts[1].parts[0])
            stack.append(Node(kind, parts))
        elif name in ("TUPLE", "FROZENSET"):
            stack.append(Node(name.lower(), _pop_to_mark(stack)))
        elif name in ("APPEND", "BUILD", "SETITEM"):
            count = 2 if name == "SETITEM" else 1
            parts = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            stack[-1].parts.extend([Node("state", parts)] if name == "BUILD" else parts)
        elif name in ("APPENDS", "SETITEMS", "ADDITEMS"):
            parts = _pop_to_mark(stack)
            stack[-1].parts.extend(parts)
        elif name == "GLOBAL":
            stack.append(Node("global", argument.split(" ", 1)))
        elif name == "POP":
            _keep_side_effect(stack.pop())
        elif argument is not None:
            stack.append(argument)
        else:
            raise ValueError(f"opcode {name}")
    raise ValueError("no STOP")


_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}


def _operations(stream: io.BytesIO, whole: memoryview) -> Iterator[tuple[str, Any]]:
    """Yield the opcodes of the next pickle and their arguments; arrays are not copied."""
    while True:
        opcode = _OPCODES[stream.read(1).decode("latin-1")]
        argument: Any = None
        if opcode.name == "BYTEARRAY8":
            # pickletools would copy it twice.
            size = int.from_bytes(stream.read(8), "little")
            argument = whole[stream.tell() : stream.tell() + size]
            if len(argument) < size:
                raise ValueError("the pickle ends within an array")
            stream.seek(size, io.SEEK_CUR)
        elif opcode.arg is not None:
            argument = opcode.arg.reader(stream)
        yield opcode.name, argument
        if opcode.name == "STOP":
            return


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_CONTAINERS = {
    "EMPTY_TUPLE": "tuple",
    "EMPTY_LIST": "list",
    "EMPTY_DICT": "dict",
    "EMPTY_SET": "set",
}
_TAKES = {
    "TUPLE1": ("tuple", 1),
    "TUPLE2": ("tuple", 2),
    "TUPLE3": ("tuple", 3),
    "STACK_GLOBAL": ("global", 2),
    "REDUCE": ("call", 2),
    "NEWOBJ": ("new", 2),
    "NEWOBJ_EX": ("new", 3),
    "BINPERSID": ("persistent", 1),
}


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    parts: list[Any] = []
    while stack[-1] is not _MARK:
        parts.append(stack.pop())
    stack.pop()
    return parts[::-1]


def _keep_side_effect(popped: Any) -> None:
    # A call whose value is thrown away fills its first argument: cloudpickle's way to give a
    # function or a class its state once it exists.
    if isinstance(popped, Node) and popped.kind == "call":
        setter, arguments = popped.parts
        if arguments.parts and isinstance(arguments.parts[0], Node):
            arguments.parts[0].parts.append(Node("set", [setter, *arguments.parts[1:]]))


class _Digester:
    """Hashes a tree in which a node can be part of itself."""

    def __init__(self) -> None:
        self._done: dict[int, bytes] = {}
        self._path: dict[int, int] = {}

    def digest(self, value: Any) -> bytes:
        """Return the digest of a node or a leaf."""
        if not isinstance(value, Node):
            # The values of an array: their text would be four times as long.
            is_binary = isinstance(value, bytes | memoryview)
            leaf = value if is_binary else repr(value).encode("utf-8", "replace")
            return _hash(f"leaf {type(value).__name__}", [leaf])
        key = id(value)
        if key in self._done:
            return self._done[key]
        if key in self._path:
            # Part of itself: the number of levels up.
            return _hash("above", [str(len(self._path) - self._path[key]).encode()])
        self._path[key] = len(self._path)
        parts: list[bytes | memoryview] = [self.digest(part) for part in _meaning(value)]
        del self._path[key]
        if value.kind in ("set", "frozenset"):
            parts.sort()
        self._done[key] = _hash(value.kind, parts)
        return self._done[key]


def _meaning(node: Node) -> Iterator[Any]:
    """Yield the parts of a node that identify it."""
    if node.kind == "dict":
        for key, value in zip(node.parts[::2], node.parts[1::2], strict=True):
            if not (isinstance(key, str) and key in _IGNORED_KEYS):
                yield key
                yield value
    elif node.kind == "call":
        callee, arguments, *state = node.parts
        dropped: tuple[int, ...] = ()
        if is_code_type(callee):
            dropped = _PLACE_IN_CODE.get(len(arguments.parts), ())
        elif isinstance(callee, Node) and callee.kind == "global":
            tracker = _TRACKER_ID.get(callee.parts[1])
            dropped = () if tracker is None else (tracker,)
        yield callee
        yield from (part for i, part in enumerate(arguments.parts) if i not in dropped)
        yield from state
    else:
        yield from node.parts


def _without_addresses(content: bytes) -> Node:
    """Return the content of a torch storage.

    torch pickles it as five pickles and the values. The fourth names the storage by its address in
    memory, which the fifth lists.
    """
    stream, whole = io.BytesIO(content), memoryview(content)
    *header, storage, names = (_build(stream, whole) for _ in range(5))
    storage.parts[0].parts = [part for part in storage.parts[0].parts if part not in names.parts]
    return Node("tuple", [*header, storage, stream.read()])


def _is_global(callee: Any, module: str, name: str) -> bool:
    return isinstance(callee, Node) and callee.kind == "global" and callee.parts == [module, name]


def is_code_type(callee: Any) -> bool:
    """Return whether this is types.CodeType, which cloudpickle names. Not collective."""
    return (
        isinstance(callee, Node)
        and callee.kind == "call"
        and callee.parts[1].kind == "tuple"
        and callee.parts[1].parts == ["CodeType"]
    )


def _hash(kind: str, parts: list[bytes | memoryview]) -> bytes:
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def is_pickle(content: bytes) -> bool:
    """Return whether bytes look like a pickle. Not collective.

    Examples
    --------
    >>> is_pickle(pickle.dumps(1)), is_pickle(b"1")
    (True, False)
    """
    return content[:1] == pickle.PROTO and content[-1:] == pickle.STOP
