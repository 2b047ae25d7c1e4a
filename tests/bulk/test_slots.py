from __future__ import annotations

import os
from pathlib import Path

from hpctrain.bulk.slots import Slots
from hpctrain.bulk.state_file import BLOCK_BYTES, PAGE_BYTES, Chunk, StateFile
from hpctrain.bulk.state_file_writer import StateFileWriter


def test_a_block_always_has_the_same_place_and_shares_it_with_others_where_there_are_few():
    slots = Slots(2)
    slots.place(0)[:2] = b"ab"
    assert slots.place(2) is slots.place(0)
    assert bytes(slots.memory[:2]) == b"ab"
    slots.occupy([2])
    assert not slots.are_free([0])
    assert slots.are_free([1, 3])
    slots.give(slots.place(0))
    assert slots.are_free([0, 1, 2, 3])


def test_memory_is_there_once_it_is_used():
    def resident() -> int:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    slots = Slots(64)
    assert resident() - before < 8 * BLOCK_BYTES
    slots.place(5)[::PAGE_BYTES] = bytes(BLOCK_BYTES // PAGE_BYTES)
    assert resident() - before < 16 * BLOCK_BYTES


def test_a_file_is_finished_while_blocks_of_the_next_have_all_places(tmp_path: Path):
    slots = Slots(1)
    chunk = Chunk(name="w", dtype="U8", shape=(10,), offsets=(0,))
    layout = StateFile.plan([chunk])
    slots.place(0)[:10] = b"0123456789"
    with StateFileWriter(tmp_path / "f", layout, ring=slots) as writer:
        slots.occupy([0])
        writer.put(0, slots.place(0))
        with slots.change:
            assert slots.change.wait_for(lambda: slots.are_free([0]), 60)
            slots.occupy([0])
        writer.finish()
    assert (tmp_path / "f").read_bytes()[layout.header_bytes :] == b"0123456789"
