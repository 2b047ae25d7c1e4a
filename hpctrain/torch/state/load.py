"""`load_state`: a model's whole state from a directory, into live tensors, by all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain import timeouts
from hpctrain.bulk.header import read_layout
from hpctrain.bulk.index import IndexedFile, StateIndex
from hpctrain.bulk.switch_interval import short_switch_interval
from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch.state.dcp import DCP_METADATA_NAME
from hpctrain.torch.state.engine.open_readers import ReadFile
from hpctrain.torch.state.engine.read_blocks import StateReading
from hpctrain.torch.state.engine.step_gate import wait_for_all
from hpctrain.torch.state.engine.transport import Transport, transport
from hpctrain.torch.state.find_index import find_index
from hpctrain.torch.state.layout.block_targets import FileTargets
from hpctrain.torch.state.layout.load_parts import (
    Digests,
    IndexPart,
    digest_of,
    share_index,
    share_reads,
    wants_of,
)
from hpctrain.torch.state.layout.load_plan import (
    LiveShards,
    Schedule,
    live_shards,
    plan_local,
    requests_of,
)
from hpctrain.torch.state.ranks import communicator, exchange, failing_together
from hpctrain.torch.state.state_dict.flatten import FlatState, flatten_state
from hpctrain.torch.state.state_dict.optimizer import shard_again
from hpctrain.torch.state.state_dict.saved_trees import SavedTrees
from hpctrain.torch.state.streams import wait_for_devices
from hpctrain.world import Communicator

if TYPE_CHECKING:
    import torch


def load_state(
    source: Checkpoint | str | PathLike[str],
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    **others: Any,
) -> None:
    """Load a model, its optimizer and all else that `save_state` wrote, straight into place.

    Collective: every rank calls it, with the same names. The number of ranks, and how the model is
    wrapped and sharded, may be others than when it was saved.

    Each byte is read once by all ranks together, verified while it is in the cache, and sent to the
    ranks that want it too. There is no second copy of the state: what is read goes into the live
    parameters, buffers and optimizer state. State need not have the structure that it has now: what
    an optimizer, a dict or whatever has a ``load_state_dict()`` lacks, it is given, which for an
    optimizer that has not stepped is all of its state, also under a name of its own.

    Parameters
    ----------
    source
        What `hpctrain.get_checkpoint` gave, of a `report_state`; or a directory of `save_state`, or
        with files that safetensors or `torch.distributed.checkpoint`'s ``HuggingFaceStorageWriter``
        wrote, which have no digests and are not verified.
    model
        Plain, compiled, or wrapped in DDP or `torch.distributed.fsdp.fully_shard`.
    optimizer
        Of its parameters; one or several.
    **others
        What else there is, by the names it was saved with. What is not asked for is not read. What
        has a ``load_state_dict()`` is given what its ``state_dict()`` was: tensors that it has in
        the same place, with the same shape and type, have been read into, and others are new ones,
        on the CPU. A dict keeps its tensors, and gets what it has not. Of a state that another
        program or `hpctrain.torch.StateWriter` wrote, only optimizers get more than they have.

    Raises
    ------
    CheckpointError
        On all ranks, whichever found it. If the state is incomplete or of other names, shapes or
        types, a header is damaged or a file is missing, nothing has been changed. If a block is
        found to be damaged while it is read, the message says that the model cannot be used.
    """
    ranks = communicator()
    with ExitStack() as held:
        with failing_together(ranks, FINDING):
            if isinstance(source, Checkpoint):
                source = held.enter_context(source.as_directory())
            directory = _checked(source)
            if model is None and optimizer is None and not others:
                raise ConfigError(
                    "load_state() was given nothing to load into. Give model=, optimizer=, or what "
                    "else was saved, by its name."
                )
        load_into(directory, model=model, optimizer=optimizer, others=others, ranks=ranks)


def _checked(source: Any) -> Path:
    if not isinstance(source, str | PathLike):
        next_step = {
            "NoneType": "At a fresh start there is no checkpoint: call it only if there is one.",
            "Result": "Give result.checkpoint.",
        }
        raise ConfigError(
            f"load_state({source!r:.60}): a Checkpoint or a directory is needed. "
            f"{next_step.get(type(source).__name__, 'Give what get_checkpoint() gave.')}"
        )
    path = Path(source)
    if path.is_file():
        raise ConfigError(
            f"load_state({str(path)!r}): that is a file. Give the directory of a state; what "
            f"torch.save() wrote is read by torch.load()."
        )
    return path


FINDING = "load_state()"
"""The first exchange of those who load."""
_NEXT = "Load another checkpoint."
_TORN = (
    "Part of the state was changed, so what was to be loaded cannot be used any more: load another "
    "checkpoint into all of it, or start again."
)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a load did."""

    bytes_read: int
    """Of files, by all ranks together."""


def load_into(
    directory: Path,
    *,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
    others: Mapping[str, Any],
    ranks: Communicator,
    carrier: Transport | None = None,
    timeout_s: float = timeouts.STATE_READ_S,
) -> Loaded:
    """Load a state; see `load_state`. Collective.

    Parameters
    ----------
    directory, model, optimizer, others
        As there.
    ranks
        All ranks.
    carrier
        How ranks send each other blocks; None chooses.
    timeout_s
        Seconds to wait for other ranks or the disk, if nothing moves meanwhile.
    """
    with failing_together(ranks, FINDING):
        # What is about to be overwritten may be being copied for an ASYNC report.
        wait_for_all()
    outline, files = _agreed_outline(directory, ranks)
    index = outline.index
    live: LiveShards = {}
    state, wants, wanted, failure, cause = None, None, b"", None, None
    try:
        if model is not None:
            shard_again(model)
        saved = SavedTrees(index, outline.dtypes)
        state = flatten_state(model=model, optimizer=optimizer, others=others, saved=saved)
        live = live_shards(state, index, outline.dtypes, directory=directory)
        if outline.is_dcp:
            live = {}
        elif ranks.size > 1:
            wants = wants_of(live)
            wanted = wants.digest()
        wait_for_devices({tensor.device for tensor in state.tensors.values()})
    # Whatever it is, a device without memory for instance: the others wait for this rank.
    except Exception as error:
        failure, cause = str(error) or type(error).__name__, error
    answers = exchange(ranks, "loading", (failure, wanted))
    _raise_first([text for text, _ in answers], cause)
    assert state is not None
    part = share_index(wants, [digest for _, digest in answers], files, ranks=ranks)
    del files
    plan = _agreed_plan(directory, live, part, ranks)
    reading = StateReading(
        plan.files,
        plan.targets,
        plan.schedule,
        rank=ranks.rank,
        transport=carrier or (transport(ranks) if ranks.size > 1 else None),
        timeout_s=timeout_s,
    )
    read_dcp_too = None
    if outline.is_dcp:
        # Its imports take a tenth of a second of each rank.
        from hpctrain.torch.state.dcp.torch_files import read_dcp

        read_dcp_too = partial(read_dcp, directory, state, index)
    bytes_read = _read(reading, ranks, read_too=read_dcp_too)
    _restore(state, index, ranks)
    return Loaded(bytes_read=bytes_read + plan.header_bytes)


@dataclass(frozen=True, kw_only=True)
class _Outline:
    """What all ranks need of an index: all but its files."""

    index: StateIndex
    """Without files."""
    dtypes: Sequence[tuple[str, str]]
    """As of `StateIndex.dtypes`, of all files."""
    is_dcp: bool


def _agreed_outline(directory: Path, ranks: Communicator) -> tuple[_Outline, Sequence[IndexedFile]]:
    """Return what rank 0 has read of an index, and on rank 0 the files to read. Collective."""
    outline, files, failure, cause = None, tuple[IndexedFile, ...](), None, None
    if ranks.rank == 0:
        try:
            index = find_index(directory)
            is_dcp = any(file.name == DCP_METADATA_NAME for file in index.files)
            outline = _Outline(index=replace(index, files=()), dtypes=index.dtypes(), is_dcp=is_dcp)
            files = () if is_dcp else tuple(index.files)
        except Exception as error:
            failure, cause = str(error) or type(error).__name__, error
    found: tuple[_Outline | None, str | None]
    found = exchange(ranks, FINDING, (outline, failure))[0]
    if found[0] is None:
        raise CheckpointError(f"{found[1]} Nothing was changed.") from cause
    return found[0], files


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What this rank does, as ranks agreed before any of them changes anything."""

    files: Mapping[int, ReadFile]
    """By number: those that this rank wants something of, with the digests of what it reads."""
    targets: Mapping[int, FileTargets]
    schedule: Schedule
    header_bytes: int
    """Of the headers that all ranks have read."""


def _agreed_plan(directory: Path, live: LiveShards, part: IndexPart, ranks: Communicator) -> _Plan:
    """Return what this rank reads, sends and receives. Collective."""
    targets, failure, cause = dict[int, FileTargets](), None, None
    try:
        targets = plan_local(live, part.wanted, directory=directory)
    except Exception as error:
        failure, cause = str(error) or type(error).__name__, error
    headers = _read_headers(directory, part.verified)
    requests = requests_of(targets)
    sent = (failure or headers.failure, headers.size, digest_of(requests))
    failures, sizes, wanted = zip(*exchange(ranks, "planning reads", sent), strict=True)
    _raise_first(failures, cause)
    schedule, digests = share_reads(
        requests, headers.digests, are_alike=len(set(wanted)) == 1, ranks=ranks
    )
    files = {
        number: ReadFile(
            path=directory / file.name,
            layout=replace(file.layout, digests=digests.get(number, ())),
        )
        for number, file in part.wanted.items()
    }
    return _Plan(files=files, targets=targets, schedule=schedule, header_bytes=sum(sizes))


def _read(
    reading: StateReading, ranks: Communicator, *, read_too: Callable[[], None] | None
) -> int:
    """Read into live tensors; return how many bytes all ranks have read. Collective."""
    with reading:
        _raise_first(exchange(ranks, "opened", reading.failure))
        try:
            if read_too is not None:
                read_too()
            with short_switch_interval(awaited=True):
                reading.run()
        except CheckpointError as error:
            raise CheckpointError(f"{error} {_TORN}") from error
    outcomes = exchange(ranks, "read", (reading.bytes_read, reading.damage))
    damage = [text for _, texts in outcomes for text in texts]
    if damage:
        several = f"{len(damage)} blocks are damaged. " if len(damage) > 1 else ""
        raise CheckpointError(f"{damage[0]} {several}{_TORN}")
    return sum(size for size, _ in outcomes)


def _restore(state: FlatState, index: StateIndex, ranks: Communicator) -> None:
    """Load what is no tensor, once all tensors are read. Collective."""
    failure, cause = None, None
    try:
        state.restore({name: index.values[name] for name in state.values})
    except CheckpointError as error:
        failure, cause = str(error), error
    failures = [text for text in exchange(ranks, "restored", failure) if text is not None]
    if failures:
        raise CheckpointError(f"{failures[0]} {_TORN}") from cause


@dataclass(frozen=True, kw_only=True)
class _Headers:
    """The headers of some files, which this rank has read."""

    digests: Digests
    size: int
    """Bytes of all of them."""
    failure: str | None = None


def _read_headers(directory: Path, files: Mapping[int, IndexedFile]) -> _Headers:
    """Read the headers of files, and compare them with the index. Not collective."""
    digests, size = {}, 0
    for number, file in files.items():
        try:
            layout = read_layout(directory / file.name)
        except CheckpointError as error:
            return _Headers(digests={}, size=size, failure=f"{error} {_NEXT}")
        size += layout.header_bytes
        if replace(layout, digests=()) != replace(file.layout, digests=()):
            failure = (
                f"{directory / file.name} is not the file that the index of {directory} names. "
                f"{_NEXT}"
            )
            return _Headers(digests={}, size=size, failure=failure)
        digests[number] = layout.digests
    return _Headers(digests=digests, size=size)


def _raise_first(failures: Sequence[str | None], cause: Exception | None = None) -> None:
    failed = [(rank, text) for rank, text in enumerate(failures) if text is not None]
    if failed:
        rank, text = failed[0]
        others = "" if len(failures) == 1 else f" (rank {rank}; {len(failed)} of {len(failures)})"
        raise CheckpointError(f"{text} Nothing was changed.{others}") from cause
