"""The prefix index against an honest walk over plain sets."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.router.index import PrefixIndex
from replicas.kv.prefix import chain_keys, root_key

ROOM = 4096
HOLDERS = ("a", "b", "c", "d")

Prefix = tuple[int, ...]


def chain(tokens: Sequence[int], salt: str = "") -> list[bytes]:
    """Keys of blocks of one token: chains share the keys of the tokens with which both begin."""
    return chain_keys(root_key("model", 1, salt), tokens, 1)


def index_of(*holders: str, max_blocks: int = ROOM) -> PrefixIndex:
    index = PrefixIndex(max_blocks)
    for holder in holders:
        index.add_holder(holder)
    return index


class Walk:
    """What the index stands for: the blocks of each holder, a block being the tokens up to its end."""

    def __init__(self) -> None:
        self.held: dict[str, set[Prefix]] = {}

    def match(self, tokens: Sequence[int]) -> dict[str, int]:
        depths = {holder: self.depth(holder, tokens) for holder in self.held}
        return {holder: depth for holder, depth in depths.items() if depth}

    def depth(self, holder: str, tokens: Sequence[int]) -> int:
        ends = range(1, len(tokens) + 1)
        return next((end - 1 for end in ends if tuple(tokens[:end]) not in self.held[holder]), len(tokens))


class Pair:
    """Both, told the same."""

    def __init__(self) -> None:
        self.index, self.walk = PrefixIndex(ROOM), Walk()

    def add(self, holder: str) -> None:
        self.index.add_holder(holder)
        self.walk.held[holder] = set()

    def forget(self, holder: str) -> None:
        self.index.forget(holder)
        self.walk.held.pop(holder, None)

    def store(self, holder: str, tokens: Sequence[int], known: int) -> None:
        """The holder computes a prompt, and tells of what is new to it: perhaps of some that is not, too."""
        if holder not in self.walk.held:
            self.index.store(holder, chain(tokens))
            return
        self.index.store(holder, chain(tokens)[min(known, self.walk.depth(holder, tokens)) :])
        self.walk.held[holder].update(tuple(tokens[:end]) for end in range(1, len(tokens) + 1))

    def evict(self, holder: str, tokens: Sequence[int], length: int) -> None:
        """A block goes, and with it all that follow."""
        held = self.walk.held.get(holder, set())
        gone = {block for block in held if len(block) >= length and block[:length] == tuple(tokens[:length])}
        self.index.remove(holder, [chain(block)[-1] for block in sorted(gone, key=len, reverse=True)])
        held -= gone

    def store_blocks(self, holder: str, blocks: Sequence[Prefix]) -> None:
        """Anything, whether the blocks before are held or not."""
        self.index.store(holder, [chain(block)[-1] for block in blocks])
        self.walk.held[holder].update(blocks)


bits = st.lists(st.integers(0, 1), min_size=1, max_size=20)
whos = st.sampled_from(HOLDERS)
lengths = st.integers(1, 20)
acts = st.one_of(
    st.tuples(st.just("add"), whos),
    st.tuples(st.just("forget"), whos),
    st.tuples(st.just("evict"), whos, bits, lengths),
    *[st.tuples(st.just("store"), whos, bits, lengths)] * 3,
)


@given(st.lists(acts, max_size=40), st.lists(bits, min_size=1, max_size=8))
def test_matches_what_a_walk_finds(events, prompts):
    pair = Pair()
    for holder in HOLDERS[:3]:
        pair.add(holder)
    for act, *arguments in events:
        getattr(pair, act)(*arguments)
    for tokens in [*prompts, *(event[2] for event in events if len(event) > 2)]:
        assert pair.index.match(chain(tokens)) == pair.walk.match(tokens)


@pytest.mark.parametrize("seed", range(20))
def test_matches_a_walk_on_long_chains_with_many_ends(seed):
    random = Random(seed)
    keys, names = chain(range(1500)), [f"r{number}" for number in range(40)]
    index, depths = index_of(*names, max_blocks=1 << 11), dict.fromkeys(names, 0)
    for _ in range(200):
        name, depth = random.choice(names), random.randrange(1, 1500)
        if random.random() < 0.7:
            index.store(name, keys[random.randrange(depths[name] + 1) : depth])
            depths[name] = max(depths[name], depth)
        else:
            index.remove(name, keys[: depth - 1 : -1])
            depths[name] = min(depths[name], depth)
    index.forget("r7")
    assert index.match(keys) == {name: depth for name, depth in depths.items() if depth and name != "r7"}


@pytest.mark.parametrize("places", [1, 3, 300])
def test_finds_hundreds_of_holders_wherever_they_end(places):
    keys, names = chain(range(400)), [f"r{number}" for number in range(300)]
    index = index_of(*names)
    depths = {name: number % places + 1 for number, name in enumerate(names)}
    for name, depth in depths.items():
        index.store(name, keys[:depth])
    assert index.match(keys) == depths
    for name in names[::7]:
        index.forget(name)
        del depths[name]
    index.add_holder("newcomer")
    assert index.match(keys) == depths


class CountedKeys(list[bytes]):
    """Keys that count how often they are read."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        super().__init__(keys)
        self.reads: list[int] = []

    def __getitem__(self, place):
        self.reads.append(place)
        return super().__getitem__(place)


def reads_of(index: PrefixIndex, keys: Sequence[bytes]) -> int:
    counted = CountedKeys(keys)
    index.match(counted)
    assert len(counted.reads) == len(set(counted.reads)), "a key was read twice"
    return len(counted.reads)


@pytest.mark.parametrize("seed", range(4))
def test_where_holders_still_end_where_they_did_few_reads_are_enough(seed):
    keys, names = chain(range(4096)), [f"r{number}" for number in range(16)]
    depths = dict(zip(names, Random(seed).sample(range(1, 4096), 16), strict=True))
    index = index_of(*names, max_blocks=1 << 14)
    for name, depth in depths.items():
        index.store(name, keys[:depth])
    assert index.match(keys) == depths
    assert reads_of(index, keys) <= 3 * len(names)


def test_where_conversations_part_few_reads_are_enough():
    names = [f"r{number}" for number in range(8)]
    talks = [chain([*range(500 * number), *range(5000, 9000)]) for number in range(1, 9)]
    index = index_of(*names, max_blocks=1 << 17)
    for name, talk in zip(names, talks, strict=True):
        index.store(name, talk)
    for name, talk in zip(names, talks, strict=True):
        assert index.match(talk)[name] == len(talk)
        assert reads_of(index, talk) <= 3 * len(names)


def test_where_they_were_cut_short_it_bisects():
    keys = chain(range(4096))
    index = index_of("a", "b", max_blocks=1 << 14)
    for name, left in (("a", 1000), ("b", 3000)):
        index.store(name, keys)
        index.remove(name, keys[: left - 1 : -1])
    assert index.match(keys) == {"a": 1000, "b": 3000}
    assert reads_of(index, keys) <= 2 * 2 * 12 + 4


def test_a_prompt_that_nobody_knows_takes_one_read():
    index = index_of("a")
    index.store("a", chain([1, 2, 3]))
    assert index.match(chain([2, 3, 4])) == index.match([]) == {}
    assert reads_of(index, chain([2, 3, 4])) == 1


def test_salts_and_models_do_not_meet():
    index = index_of("a")
    index.store("a", chain([1, 2, 3], salt="mine"))
    assert index.match(chain([1, 2, 3], salt="mine")) == {"a": 3}
    assert index.match(chain([1, 2, 3])) == {}


# Leaving and coming back


def test_who_has_left_is_in_no_match_and_its_late_events_count_for_nothing():
    index, keys = index_of("a", "b"), chain([1, 2, 3])
    index.store("a", keys)
    index.store("b", keys[:2])
    index.forget("a")
    assert index.match(keys) == {"b": 2}
    index.store("a", keys)
    index.remove("a", keys)
    index.forget("a")
    assert index.match(keys) == {"b": 2}


def test_who_comes_back_starts_with_nothing():
    index, keys = index_of("a"), chain([1, 2, 3])
    index.store("a", keys)
    index.forget("a")
    index.add_holder("a")
    assert index.match(keys) == {}
    index.store("a", keys[:1])
    assert index.match(keys) == {"a": 1}


def test_an_engine_restarted_in_place_is_not_credited_with_its_past():
    index, keys = index_of("a", "b"), chain([1, 2, 3])
    index.store("a", keys)
    index.store("b", keys)
    index.add_holder("a")
    assert index.match(keys) == {"b": 3}


def test_a_newcomer_does_not_inherit_from_the_one_whose_place_it_takes():
    index, keys = index_of("a"), chain([1, 2, 3])
    index.store("a", keys)
    index.forget("a")
    index.add_holder("z")
    assert index.match(keys) == {}


def test_holders_may_come_and_go_for_ever():
    index, keys = index_of(), chain(range(8))
    for life in range(500):
        index.add_holder(f"pod-{life}")
        index.store(f"pod-{life}", keys)
        assert index.match(keys) == {f"pod-{life}": 8}
        index.forget(f"pod-{life}")
    assert index.match(keys) == {}
    assert index.num_sets <= 1


# Holders with gaps


@given(st.data())
def test_gaps_never_earn_more_than_up_to_the_last_block_held(data):
    pair = Pair()
    tokens = data.draw(bits)
    blocks = [tuple(tokens[:end]) for end in range(1, len(tokens) + 1)]
    for holder in HOLDERS:
        pair.add(holder)
        pair.store_blocks(holder, data.draw(st.lists(st.sampled_from(blocks))))
    found, walked = pair.index.match(chain(tokens)), pair.walk.match(tokens)
    for holder in HOLDERS:
        held = pair.walk.held[holder]
        assert found.get(holder, 0) in {0, *map(len, held)}
        assert found.get(holder, 0) >= walked.get(holder, 0)
        assert holder not in found or blocks[0] in held


# Bounds


def fill(index: PrefixIndex, holder: str, chains: int, length: int = 16) -> list[list[bytes]]:
    made = [chain([first, *range(length - 1)], salt="filling") for first in range(chains)]
    for keys in made:
        index.store(holder, keys)
    return made


@pytest.mark.parametrize("max_blocks", [1, 2, 7, 100, 1000])
def test_never_holds_more_blocks_than_it_may(max_blocks):
    index = index_of("a", "b", max_blocks=max_blocks)
    for _ in range(3):
        for keys in fill(index, "a", 70):
            index.store("b", keys)
            assert len(index) <= max_blocks
    assert len(index) >= max_blocks * 3 // 4


def test_the_least_recently_stored_goes_first():
    index = index_of("a", max_blocks=1600)
    made = fill(index, "a", 300)
    assert [index.match(keys) for keys in made[-80:]] == [{"a": 16}] * 80
    assert [index.match(keys) for keys in made[:180]] == [{}] * 180


def test_what_is_asked_for_stays():
    index = index_of("a", max_blocks=1600)
    system_prompt = chain(range(100))
    index.store("a", system_prompt)
    for first in range(1000):
        index.store("a", chain([first + 1000, *range(15)]))
        assert index.match(system_prompt) == {"a": 100}


def test_what_goes_from_the_index_is_never_credited_to_those_who_did_not_have_it():
    index = index_of("a", "b", max_blocks=64)
    walk = Walk()
    walk.held = {"a": set(), "b": set()}
    random = Random(3)
    for _ in range(400):
        holder, tokens = random.choice("ab"), [random.randrange(3) for _ in range(6)]
        index.store(holder, chain(tokens))
        walk.held[holder].update(tuple(tokens[:end]) for end in range(1, 7))
        asked = [random.randrange(3) for _ in range(6)]
        found = index.match(chain(asked))
        assert all(depth <= walk.match(asked)[holder] for holder, depth in found.items())


def test_sets_are_bounded_and_losing_some_credits_nobody_wrongly():
    names = [f"r{number}" for number in range(12)]
    index = index_of(*names, max_blocks=256)
    walk, random = Walk(), Random(5)
    walk.held = {name: set() for name in names}
    for turn in range(2000):
        name, token = random.choice(names), random.randrange(200)
        if turn % 3:
            index.store(name, chain([token]))
            walk.held[name].add((token,))
        else:
            index.remove(name, chain([token]))
            walk.held[name].discard((token,))
        assert index.num_sets <= 256 // 8 + len(names)
        assert index.match(chain([token])).items() <= walk.match([token]).items()
    assert sum(bool(index.match(chain([token]))) for token in range(200)) > 150


@pytest.mark.parametrize("max_blocks", [0, -1])
def test_an_index_without_room_is_refused(max_blocks):
    with pytest.raises(ValueError, match="max_blocks"):
        PrefixIndex(max_blocks)
