"""Reading traces and making loads."""

from __future__ import annotations

import json
from random import Random

import pytest

from deploy.errors import UserError
from deploy.simulate.load import at_rate, read_trace
from deploy.simulate.synthetic import Amount, chats, made_up, siblings


def trace(tmp_path, *rows):
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


def row(timestamp, length, hash_ids, output=5):
    return {"timestamp": timestamp, "input_length": length, "output_length": output, "hash_ids": hash_ids}


class TestTrace:
    def test_keys_are_those_of_full_blocks_and_equal_where_hash_ids_are(self, tmp_path):
        first, second = read_trace(trace(tmp_path, row(0, 1100, [0, 1, 2]), row(500, 1600, [0, 1, 7, 8])), 64)
        assert (len(first.block_keys), len(second.block_keys)) == (17, 25)
        assert first.block_keys[:16] == second.block_keys[:16]
        assert first.block_keys[16] != second.block_keys[16]
        assert len(set(second.block_keys)) == 25
        assert (second.time, second.num_tokens, second.max_tokens) == (0.5, 1600, 5)

    def test_rows_are_put_in_order_of_time(self, tmp_path):
        arrivals = read_trace(trace(tmp_path, row(900, 64, [0]), row(100, 64, [1])), 64)
        assert [arrival.time for arrival in arrivals] == [0.1, 0.9]

    @pytest.mark.parametrize("wrong", [{"timestamp": 0}, {}, 7, row("x", 5, [0])])
    def test_a_wrong_row_is_named(self, tmp_path, wrong):
        with pytest.raises(UserError, match=r"line 2 of .*trace\.jsonl is not a row of a Mooncake trace"):
            read_trace(trace(tmp_path, row(0, 64, [0]), wrong), 64)

    def test_a_missing_file_an_empty_one_and_a_block_size_that_does_not_fit_are_refused(self, tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            read_trace(tmp_path / "none", 64)
        with pytest.raises(UserError, match="is empty"):
            read_trace(trace(tmp_path), 64)
        with pytest.raises(UserError, match="must divide 512"):
            read_trace(trace(tmp_path, row(0, 64, [0])), 48)


class TestMadeUp:
    def test_a_seed_repeats_a_load(self):
        amount = Amount(5.0, 60.0, 16)
        assert chats(amount, Random(1)) == chats(amount, Random(1)) != chats(amount, Random(2))

    def test_a_turn_of_a_chat_begins_with_the_whole_turn_before(self):
        latest = {}
        shared = 0
        for arrival in chats(Amount(5.0, 300.0, 16), Random(1)):
            before = latest.get(arrival.session)
            if before is not None:
                assert arrival.block_keys[: len(before)] == before
                shared += 1
            latest[arrival.session] = arrival.block_keys
        assert shared > 100

    def test_sixteen_siblings_share_all_but_their_ends(self):
        arrivals = siblings(Amount(16.0, 10.0, 16), Random(1))
        burst = [arrival for arrival in arrivals if arrival.time == arrivals[0].time]
        shared = len(set.intersection(*(set(arrival.block_keys) for arrival in burst)))
        assert len(burst) == 16
        assert all(shared > 0.7 * len(arrival.block_keys) for arrival in burst)

    def test_a_load_that_there_is_not_is_refused(self):
        with pytest.raises(UserError, match="there is no load 'x'; there are chats, siblings"):
            made_up("x", Amount(1.0, 1.0, 16), Random(1))

    def test_a_higher_rate_is_the_same_load_in_less_time(self):
        arrivals = siblings(Amount(16.0, 10.0, 16), Random(1))
        faster = at_rate(arrivals, 4.0)
        assert [arrival.time * 4 for arrival in faster] == pytest.approx([arrival.time for arrival in arrivals])
        assert [arrival.block_keys for arrival in faster] == [arrival.block_keys for arrival in arrivals]
