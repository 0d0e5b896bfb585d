"""Where requests go, as one gateway decides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from cluster.router.placement import Placement, Wish
from replicas.kv.prefix import chain_keys, root_key
from replicas.messages import LoadReport

BLOCK = 16
RATE = 10_000.0
IDLE = LoadReport(prefill_rate=RATE, step_seconds=0.01)


def placement_of(*replicas, seed=0):
    placement = Placement(BLOCK, Random(seed))
    for replica in replicas:
        placement.join(replica)
        placement.observe(replica, IDLE, 0.0)
    return placement


def keys_of(tokens):
    return chain_keys(root_key("model", BLOCK), tokens, BLOCK)


PROMPT = keys_of(range(3200))


def wish(name, keys=(), tokens=3201, **others):
    return Wish(str(name), keys, tokens, 100, **others)


class TestCache:
    def test_a_request_goes_where_its_prefix_is(self):
        placement = placement_of("a", "b", "c")
        placement.stored("b", PROMPT[:150])
        choice = placement.place(wish(1, PROMPT), 0.0)
        assert (choice.replica, choice.cached_tokens) == ("b", 150 * BLOCK)
        assert choice.ttft_seconds == pytest.approx(0.01 + (3201 - 2400) / RATE)

    def test_the_last_token_is_always_computed(self):
        placement = placement_of("a")
        placement.stored("a", PROMPT)
        assert placement.place(wish(1, PROMPT, tokens=3200), 0.0).cached_tokens == 3200 - BLOCK

    def test_what_was_removed_or_belongs_to_an_engine_that_restarted_gives_no_credit(self):
        placement = placement_of("a", "b", "c")
        for replica in ("a", "b", "c"):
            placement.stored(replica, PROMPT)
        placement.removed("a", PROMPT[100:])
        placement.cleared("b")
        placement.leave("c")
        placement.join("c")
        placement.place(wish(0, tokens=100_000, avoid=frozenset("bc")), 0.0)
        placement.observe("a", IDLE, 0.0, ["0"])
        found = {r: placement.place(wish(r, PROMPT, avoid=frozenset("abc") - {r}), 0.0).cached_tokens for r in "abc"}
        assert found == {"a": 1600, "b": 0, "c": 0}

    @pytest.mark.parametrize("seed", range(5))
    def test_after_events_were_lost_and_came_twice_a_snapshot_makes_all_good(self, seed):
        random = Random(seed)
        placement = placement_of("a")
        held = set()
        for _ in range(300):
            cut = random.randrange(len(PROMPT))
            stored = random.random() < 0.5
            held = set(PROMPT[:cut]) if stored else held - set(PROMPT[cut:])
            for _ in range(random.choice([0, 1, 1, 2])):
                (placement.stored if stored else placement.removed)("a", PROMPT[:cut] if stored else PROMPT[cut:])
        placement.cleared("a")
        placement.stored("a", [key for key in PROMPT if key in held])
        choice = placement.place(wish(1, PROMPT), 0.0)
        assert choice.cached_tokens == min(len(held), 200) * BLOCK


class TestSpread:
    def test_ties_at_idle_are_spread_evenly(self):
        placement = placement_of(*"abcdefgh")
        chosen = Counter()
        for name in range(4000):
            chosen[placement.place(wish(name), 0.0).replica] += 1
            placement.settle(str(name))
        assert min(chosen.values()) > 400
        assert max(chosen.values()) < 600

    def test_requests_that_arrive_at_once_do_not_chase_the_same_idle_replica(self):
        placement = placement_of(*"abcd")
        chosen = Counter(placement.place(wish(name), 0.0).replica for name in range(16))
        assert set(chosen.values()) == {4}

    def test_siblings_stay_together_while_their_prompt_comes(self):
        placement = placement_of(*"abcd")
        chosen = {placement.place(wish(name, PROMPT), 0.0).replica for name in range(4)}
        assert len(chosen) == 1

    @pytest.mark.parametrize("queued", [0, 20_000])
    def test_sixteen_siblings_spread_within_a_factor_of_two_once_the_holder_is_loaded(self, queued):
        placement = placement_of(*"abcd")
        placement.stored("a", PROMPT[:50])
        placement.observe("a", LoadReport(waiting_prefill_tokens=queued, prefill_rate=RATE), 0.0)
        chosen = Counter(placement.place(wish(name, PROMPT[:50], tokens=4000), 0.0).replica for name in range(16))
        others = [chosen[replica] for replica in ("bcd" if queued else "abcd")]
        assert max(others) <= 2 * min(others)

    def test_a_hot_prefix_spreads_to_further_replicas_when_its_holder_is_loaded(self):
        placement = placement_of(*"abcd")
        placement.stored("a", PROMPT)
        chosen = [placement.place(wish(name, PROMPT, tokens=3800), 0.0).replica for name in range(200)]
        assert set(chosen[:3]) == {"a"}
        assert set(chosen) == set("abcd")

    def test_gateways_that_share_the_replicas_do_not_meet_at_the_one_that_is_a_little_better(self):
        def choices(others_tokens):
            placement = placement_of(*"abcd")
            for second in range(2):
                total = 10_000 + second * (4 * 3201 + others_tokens)
                placement.observe("a", replace(IDLE, prefix_query_tokens_total=total), second)
                placement.observe("d", replace(IDLE, waiting_prefill_tokens=2000), second)
                for name in range(4):
                    placement.place(wish(name), float(second * 10))
                    placement.settle(str(name))
            for replica in "abc":
                placement.observe(replica, replace(IDLE, waiting_prefill_tokens=1000), 10.0)
            placement.observe("d", IDLE, 10.0)
            return Counter(self.first_choice(placement, name) for name in range(200))

        assert set(choices(0)) == {"d"}
        assert set(choices(100_000)) == set("abcd")

    def first_choice(self, placement, name):
        replica = placement.place(wish(name), 10.0).replica
        placement.settle(str(name))
        return replica

    def test_what_others_measured_by_chance_draws_nobody(self):
        placement = placement_of(*"ab")
        placement.observe("a", LoadReport(prefill_rate=RATE * 1.2), 0.0)
        chosen = Counter()
        for name in range(1000):
            chosen[placement.place(wish(name), 2.0).replica] += 1
            placement.settle(str(name))
        assert min(chosen.values()) > 400

    @pytest.mark.parametrize("running", [1, 4, 16])
    def test_no_replica_gets_far_more_than_its_share_however_cheap_it_is(self, running):
        """All know the prompt well, one of them better by far."""
        placement = placement_of(*map(str, range(8)))
        for replica in range(8):
            placement.stored(str(replica), PROMPT[: 190 if replica == 3 else 10])
        places = Counter(placement.place(wish(n, PROMPT), 0.0).replica for n in range(8 * running))
        assert places["3"] > 1
        assert max(places.values()) <= 1.5 * running + 3  # one more than those who may take another


class TestMembership:
    def test_nobody_is_chosen_where_nobody_is_left(self):
        assert placement_of().place(wish(1), 0.0) is None
        assert placement_of("a").place(wish(1, avoid=frozenset("a")), 0.0) is None

    def test_a_replica_that_failed_the_request_is_avoided_though_it_has_the_prefix(self):
        placement = placement_of("a", "b")
        placement.stored("a", PROMPT)
        assert placement.place(wish(1, PROMPT, avoid=frozenset("a")), 0.0).replica == "b"

    def test_events_of_a_replica_that_left_are_of_no_account(self):
        placement = placement_of("a", "b")
        placement.leave("a")
        placement.stored("a", PROMPT)
        placement.observe("a", IDLE, 0.0)
        placement.settle("never placed")
        assert placement.replicas == ["b"]

    def test_a_session_stays_where_it_was_while_that_costs_little(self):
        placement = placement_of(*"abcdefgh")
        homes = set()
        for name in range(10):
            homes.add(placement.place(wish(name, session="s"), 0.0).replica)
            placement.settle(str(name))
        (first,) = homes
        placement.observe(first, LoadReport(waiting_prefill_tokens=10_000, prefill_rate=RATE), 0.0)
        assert placement.place(wish(10, session="s"), 0.0).replica != first
