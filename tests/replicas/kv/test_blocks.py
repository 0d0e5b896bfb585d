"""The block pool under random use, and the names of blocks."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicas.kv.blocks import BlockPool
from replicas.kv.prefix import KEY_BYTES, chain_keys, root_key
from replicas.messages import KvRemoved

ROOT = root_key("model", 1)


class PoolMachine(RuleBasedStateMachine):
    """Sequences are admitted on their cached prefix, published and released in any order."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks):
        self.pool = BlockPool(num_blocks)
        self.held: list[tuple[list[int], list[bytes]]] = []
        self.known: set[bytes] = set()

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def admit(self, tokens):
        keys = chain_keys(ROOT, tokens, 1)
        hits = self.pool.match(keys)
        if len(keys) - len(hits) + self.pool.num_unreferenced(hits) > self.pool.num_free:
            return
        self.pool.acquire(hits)
        block_ids = hits + self.pool.allocate(len(keys) - len(hits))
        assert len(set(block_ids)) == len(block_ids)
        self.held.append((block_ids, keys))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def publish(self, data):
        block_ids, keys = data.draw(st.sampled_from(self.held))
        matched = self.pool.match(keys)
        if matched != block_ids[: len(matched)]:
            return  # another sequence published the same content first
        start = len(matched)
        self.pool.publish(block_ids[start:], keys[start:], keys[start - 1] if start else ROOT)
        assert len(self.pool.match(keys)) == len(keys)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.release(self.held.pop(index)[0])

    @rule()
    def clear(self):
        self.pool.clear()

    @invariant()
    def is_sound(self):
        self.pool.check_integrity(block_id for block_ids, _ in self.held for block_id in block_ids)
        for event in self.pool.drain_events():
            keys = set(event.block_keys)
            if isinstance(event, KvRemoved):
                assert keys <= self.known
                self.known -= keys
            else:
                assert keys.isdisjoint(self.known)
                self.known |= keys
        assert all(len(self.pool.match([key])) == 1 for key in self.known)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def store(pool: BlockPool, keys: list[bytes]) -> None:
    """What a sequence with these keys does to the pool, from its admission to its end."""
    hits = pool.match(keys)
    pool.acquire(hits)
    block_ids = hits + pool.allocate(len(keys) - len(hits))
    pool.publish(block_ids[len(hits) :], keys[len(hits) :], keys[len(hits) - 1] if hits else ROOT)
    pool.release(block_ids)


class TestEviction:
    def test_the_least_recently_released_goes_first_and_a_sequence_from_its_end(self):
        pool = BlockPool(4)
        for tokens in ([1, 2], [3, 4]):
            block_ids, keys = pool.allocate(2), chain_keys(ROOT, tokens, 1)
            pool.publish(block_ids, keys, ROOT)
            pool.release(block_ids)
        pool.allocate(1)
        assert len(pool.match(chain_keys(ROOT, [1, 2], 1))) == 1
        assert len(pool.match(chain_keys(ROOT, [3, 4], 1))) == 2

    def test_content_that_was_found_again_lives_twice_as_long(self):
        def lifetime(uses):
            pool, keys = BlockPool(50), chain_keys(ROOT, [0], 1)
            for token in range(1, 100):
                store(pool, chain_keys(ROOT, [token], 1))
            for _ in range(uses):
                store(pool, keys)
            return next(n for n in count() if store(pool, chain_keys(ROOT, [100 + n], 1)) or not pool.match(keys))

        assert lifetime(1) == pytest.approx(50, abs=1)
        assert lifetime(2) == lifetime(3) == pytest.approx(2 * lifetime(1), abs=3)

    @given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), max_size=40), st.integers(6, 14))
    def test_a_block_is_never_evicted_before_those_that_follow_it(self, prompts, num_blocks):
        pool = BlockPool(num_blocks)
        chains = [chain_keys(ROOT, tokens, 1) for tokens in prompts]
        for keys in chains:
            store(pool, keys)
            for other in chains:
                depth = len(pool.match(other))
                assert not any(pool.match([key]) for key in other[depth:])

    def test_blocks_without_content_are_reused_before_cached_ones(self):
        pool = BlockPool(3)
        cached, empty = pool.allocate(1), pool.allocate(1)
        pool.publish(cached, chain_keys(ROOT, [1], 1), ROOT)
        pool.release(cached)
        pool.release(empty)
        pool.allocate(2)
        assert pool.match(chain_keys(ROOT, [1], 1)) == cached

    def test_an_evicted_block_is_no_longer_found(self):
        pool = BlockPool(1)
        block_ids, keys = pool.allocate(1), chain_keys(ROOT, [1], 1)
        pool.publish(block_ids, keys, ROOT)
        pool.release(block_ids)
        pool.allocate(1)
        assert pool.match(keys) == []


class TestKeys:
    @given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 8))
    def test_a_key_names_a_block_and_all_before_it(self, tokens, block_size):
        keys = chain_keys(ROOT, tokens, block_size)
        assert len(keys) == len(tokens) // block_size
        assert all(len(key) == KEY_BYTES for key in keys)
        assert len(set(keys)) == len(keys)
        half = len(keys) // 2
        assert keys[:half] == chain_keys(ROOT, tokens[: half * block_size], block_size)
        parent = keys[half - 1] if half else ROOT
        assert keys[half:] == chain_keys(parent, tokens[half * block_size :], block_size)

    def test_one_changed_token_changes_every_key_from_there_on(self):
        before, after = chain_keys(ROOT, [1, 2, 3, 4], 1), chain_keys(ROOT, [1, 9, 3, 4], 1)
        assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False, False]

    def test_model_and_salt_are_part_of_the_name_and_cannot_be_confused(self):
        roots = [
            root_key("m", 1),
            root_key("m", 2),
            root_key("m", 1, "s"),
            root_key("ms", 1),
            root_key("m\0", 1, "s"),
            root_key("", 1, "ms"),
        ]
        assert len(set(roots)) == len(roots)
