"""The model as one file that ``torch.load(..., weights_only=True)`` reads.

torch writes the file with room for the tensors, as its `torch.serialization.skip_data` is for; then
they are copied there, and the checksums of the zip file that it is are set.
"""

from __future__ import annotations

import errno
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpctrain.bulk.state_file import HASHED_BYTES
from hpctrain.errors import CheckpointError
from hpctrain.own_files import FILE_MODE
from hpctrain.torch.state.export.copy_blocks import Place, TensorTargets
from hpctrain.torch.state.export.saved_model import SavedModel
from hpctrain.torch.state.state_dict.json_values import decode

# Of a zip file, see APPNOTE.TXT of PKWARE.
_LOCAL = struct.Struct("<4s22xHH")
_CENTRAL = struct.Struct("<4s24xHHH")
_CENTRAL_BYTES = 46
_LOCAL_SIGNATURE, _CENTRAL_SIGNATURE = b"PK\x03\x04", b"PK\x01\x02"
_DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
_CRC_IN_LOCAL, _CRC_IN_CENTRAL, _CRC_IN_DESCRIPTOR = 14, 16, 4
_CRC = struct.Struct("<I")


def write_torch(model: SavedModel, path: Path) -> None:
    """Write a model into a new file, durably, and compare it. Not collective.

    Raises
    ------
    CheckpointError
        If the checkpoint is damaged, or what was written is not there.
    OSError
        If it cannot be written.
    """
    import torch

    with _fake_tensors():
        made = {
            tensor.name: torch.empty(tensor.shape, dtype=tensor.live_dtype)
            for tensor in model.tensors
        }
        state: dict[str, Any] = dict(made)
        for alias, name in model.aliases.items():
            state[alias] = made[name]
        state.update(plain_values(model))
        with torch.serialization.skip_data(materialize_fake_tensors=True):
            try:
                torch.save(state, path)
            except RuntimeError as error:
                # torch's own writer knows no errno.
                raise OSError(errno.EIO, f"torch.save() failed: {error}") from error
    os.chmod(path, FILE_MODE & os.stat(path).st_mode)
    records = _records(path)
    # torch numbers storages in the order in which it meets them.
    numbers = {name: str(number) for number, name in enumerate(made)}
    places = {name: Place(0, records[number][0]) for name, number in numbers.items()}
    with TensorTargets(model, [path], places) as targets:
        targets.copy()
        _set_checksums(path)
        targets.compare()
    _check(path, state, {name: records[number][0] for name, number in numbers.items()})


def plain_values(model: SavedModel) -> dict[str, Any]:
    """Return the values of a model's state that ``weights_only`` loads. Not collective."""
    decoded = {name: decode(value) for name, value in model.values.items()}
    return {name: value for name, value in decoded.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if type(value) in (list, tuple, set):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


@contextmanager
def _fake_tensors() -> Iterator[None]:
    # torch documents it with skip_data, but has it at no public place.
    from torch._subclasses.fake_tensor import FakeTensorMode

    with warnings.catch_warnings(), FakeTensorMode():
        warnings.simplefilter("ignore")
        yield


def _records(path: Path) -> dict[str, tuple[int, zipfile.ZipInfo]]:
    """Return where each storage is in a file of torch, by its number."""
    found = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            *_, folder, number = ("", *info.filename.split("/"))
            if folder == "data" and number.isdecimal():
                file.seek(info.header_offset)
                signature, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
                assert signature == _LOCAL_SIGNATURE, f"{signature!r} in a file of torch"
                found[number] = (info.header_offset + _LOCAL.size + name + extra, info)
    return found


def _set_checksums(path: Path) -> None:
    """Set the CRC-32 of all storages, so that other programs can unzip the file. Not collective.

    Each is in the header of the record, in a descriptor after it, and in the central directory.
    """
    checksums: dict[int, bytes] = {}
    with open(path, "r+b") as file:
        for start, info in _records(path).values():
            file.seek(start)
            checksum, left = 0, info.file_size
            while left and (part := file.read(min(left, HASHED_BYTES))):
                checksum, left = zlib.crc32(part, checksum), left - len(part)
            checksums[info.header_offset] = _CRC.pack(checksum)
            after = file.read(_CRC_IN_DESCRIPTOR)
            if after == _DESCRIPTOR_SIGNATURE:
                file.seek(start + info.file_size + _CRC_IN_DESCRIPTOR)
                file.write(checksums[info.header_offset])
            file.seek(info.header_offset + _CRC_IN_LOCAL)
            file.write(checksums[info.header_offset])
        with zipfile.ZipFile(path) as archive:
            position, infos = archive.start_dir, archive.infolist()
        for info in infos:
            file.seek(position)
            signature, *lengths = _CENTRAL.unpack(file.read(_CENTRAL.size))
            assert signature == _CENTRAL_SIGNATURE, f"{signature!r} in a file of torch"
            if info.header_offset in checksums:
                file.seek(position + _CRC_IN_CENTRAL)
                file.write(checksums[info.header_offset])
            position += _CENTRAL_BYTES + sum(lengths)
        file.flush()
        os.fsync(file.fileno())


def _check(path: Path, written: Mapping[str, Any], starts: Mapping[str, int]) -> None:
    """Let torch read all but the content of the tensors, which has been compared."""
    import torch

    with _fake_tensors():
        found = torch.load(path, weights_only=True)
    for name, value in written.items():
        if isinstance(value, torch.Tensor):
            it = found.get(name)
            same = (
                isinstance(it, torch.Tensor)
                and (it.dtype, it.shape) == (value.dtype, value.shape)
                and starts.get(name)
                in (None, getattr(it.untyped_storage(), "_checkpoint_offset", None))
            )
        else:
            same = name in found and found[name] == value
        if not same or len(found) != len(written):
            raise CheckpointError(
                f"{path.name} was read again, and its {name} is not what was written. Export to "
                f"another filesystem, and tell the site about this one."
            )
