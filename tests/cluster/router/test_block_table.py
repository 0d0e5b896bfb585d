"""The hash table of blocks against a dictionary."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.router.block_table import NOTE, BlockTable


def key(home: int, number: int) -> bytes:
    """Keys with the same `home` want the same slot, in a table of up to 8 slots."""
    return (home << 61 | number << 1).to_bytes(8, "little") + bytes(8)


keys = st.builds(key, st.integers(0, 7), st.integers(0, 3))


@given(st.lists(st.tuples(st.sampled_from(["put", "put", "delete"]), keys, st.integers(1, NOTE)), max_size=60))
def test_crowded_slots_keep_their_notes_apart(acts):
    table, model = BlockTable(5), {}
    for act, name, note in acts:
        if act == "put" and (name in model or len(model) < 5):
            (cell,) = table.claim([name])
            table.cells[cell] = note
            model[name] = note
        elif act == "delete" and name in model:
            table.delete(table.find(name))
            del model[name]
        assert len(table) == len(model)
        for home in range(8):
            for number in range(4):
                probe = key(home, number)
                assert table.cells[table.find(probe) + 1] == model.get(probe, 0)


def test_room_is_made_of_what_was_used_longest_ago():
    table = BlockTable(64)
    for number in range(64):
        time = table.use(1)
        (cell,) = table.claim([key(number % 8, number)])
        table.cells[cell] = number + 1 | time
    assert sorted(table.make_room(1)) == list(range(1, 10))
    assert table.make_room(9) == []
    assert sorted(table.make_room(16)) == list(range(10, 17))
    assert len(table) == 48


@pytest.mark.parametrize("max_blocks", [1, 2, 5, 700, 9_000, 60_000])
def test_what_stays_is_found_and_what_goes_is_not(max_blocks):
    table, random, model = BlockTable(max_blocks), Random(max_blocks), {}
    for note in range(1, min(4 * max_blocks, 70_000)):
        for gone in table.make_room(1):
            del model[gone]
        model[note] = random.randbytes(16)
        (cell,) = table.claim([model[note]])
        table.cells[cell] = note | table.use(1)
        if note % 3 == 0 and (old := next(iter(model))) != note:
            table.delete(table.find(model.pop(old)))
        assert len(table) == len(model) <= max_blocks
    found = {table.cells[table.find(key) + 1] & NOTE: key for key in model.values()}
    assert found == model
    assert table.cells[table.find(random.randbytes(16)) + 1] == 0


def test_reserved_room_changes_nothing_but_the_size():
    keys = [bytes([number, 7]) * 8 for number in range(200)]
    grown, reserved = BlockTable(1_000_000), BlockTable(1_000_000)
    reserved.reserve(500_000)
    assert 2 * len(reserved._slots) >= 3 * 500_000
    for table in (grown, reserved):
        table.make_room(len(keys))
        for number, cell in enumerate(table.claim(keys)):
            table.cells[cell] = number + 1
    grown.reserve(500_000)
    for table in (grown, reserved):
        assert len(table) == 200
        assert [table.cells[table.find(key) + 1] for key in keys] == list(range(1, 201))
