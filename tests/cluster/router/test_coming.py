"""Which replicas are about to have a prompt's blocks, against a walk over all that is coming."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.router.coming import Coming, common_blocks


def keys_of(*tokens):
    """Chained keys: each says what comes before it."""
    return [bytes(tokens[: end + 1]) for end in range(len(tokens))]


PROMPTS = st.lists(st.integers(0, 1), max_size=5).map(lambda tokens: keys_of(*tokens))


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_the_common_prefix_is_found(shared, ours, theirs):
    keys = [f"shared {n}".encode() for n in range(shared)]
    first = keys + [f"a {n}".encode() for n in range(ours)]
    second = keys + [f"b {n}".encode() for n in range(theirs)]
    assert common_blocks(first, second) == shared
    assert common_blocks(first, first) == len(first)


@given(st.lists(st.tuples(st.sampled_from("abc"), PROMPTS)), st.sets(st.integers(0, 10)), PROMPTS, st.booleans())
def test_each_replica_is_about_to_have_what_the_best_of_its_prompts_shares(added, removed, prompt, a_leaves):
    coming = Coming()
    for name, (replica, keys) in enumerate(added):
        coming.add(str(name), replica, keys)
    for name in removed:
        coming.remove(str(name))
    if a_leaves:
        coming.forget("a")
    left = [pair for name, pair in enumerate(added) if name not in removed and not (a_leaves and pair[0] == "a")]
    expected: dict[str, int] = {}
    for replica, keys in left:
        shared = sum(ours == theirs for ours, theirs in zip(keys, prompt, strict=False))
        expected[replica] = max(expected.get(replica, 0), shared)
    assert coming.match(prompt) == {replica: blocks for replica, blocks in expected.items() if blocks}


def test_what_is_over_leaves_nothing_behind():
    coming = Coming()
    coming.add("x", "a", keys_of(1, 2))
    coming.remove("x")
    coming.remove("x")
    assert not coming._first
    assert not coming._families
