"""Priorities are kept, keys take turns by tokens, nothing is lost and nobody starves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.fair_queue import FairQueue

LARGEST = 50


@dataclass(eq=False)
class Request:
    key: str
    tokens: int
    priority: int = 0
    number: int = 0


def filled(*requests):
    queue = FairQueue()
    for request in requests:
        queue.push(request)
    return queue


def drain(queue):
    return [queue.pop() for _ in range(len(queue))]


def keys(requests):
    return "".join(request.key for request in requests)


def test_one_key_is_served_in_order_of_arrival():
    requests = [Request("a", 5, number=number) for number in range(5)]
    assert drain(filled(*requests)) == requests


def test_lower_priority_numbers_go_first():
    requests = [Request("a", 5, priority) for priority in (3, -1, 0, 3, 0)]
    assert [request.priority for request in drain(filled(*requests))] == [-1, 0, 0, 3, 3]


def test_keys_take_turns_however_many_requests_they_send():
    requests = [Request("a", 10) for _ in range(6)] + [Request("b", 10) for _ in range(2)]
    assert keys(drain(filled(*requests))) == "ababaaaa"


def test_turns_are_by_tokens_not_by_requests():
    requests = [Request("a", 30) for _ in range(3)] + [Request("b", 10) for _ in range(9)]
    assert keys(drain(filled(*requests))) == "abbbabbbabbb"


def test_a_key_that_rested_has_saved_nothing_up():
    queue = filled(*(Request("a", 10) for _ in range(20)))
    for _ in range(10):
        queue.pop()
    for _ in range(5):
        queue.push(Request("b", 10))
    assert keys(queue.pop() for _ in range(6)) in ("bababa", "ababab")


def test_a_key_that_just_had_its_turn_has_not_forgotten_it():
    queue = filled(Request("a", 100), *(Request("b", 10) for _ in range(30)))
    assert queue.pop().key == "a"
    queue.push(Request("a", 100))
    assert keys(queue.pop() for _ in range(10)) == "b" * 10


def test_who_leaves_is_not_charged():
    left = Request("a", 1000)
    queue = filled(left, *(Request("a", 10) for _ in range(2)), *(Request("b", 10) for _ in range(2)))
    queue.remove(left)
    assert keys(drain(queue)) == "abab"


@pytest.mark.parametrize(("correction", "order"), [(0, "abab"), (20, "bbaa"), (-20, "aabb")])
def test_a_key_is_charged_for_what_it_got(correction, order):
    queue = filled(Request("a", 10), Request("b", 10), *(Request(key, 10) for key in "abab"))
    assert keys([queue.pop(), queue.pop()]) == "ab"
    queue.charge("a", 0, correction)
    assert keys(drain(queue)) == order


requests = st.lists(
    st.builds(Request, st.sampled_from("abc"), st.integers(1, LARGEST), st.sampled_from([-1, 0, 0, 1])), max_size=40
)


@given(
    requests, st.integers(0, 40), st.builds(Request, st.sampled_from("abcd"), st.just(1), st.sampled_from([-1, 0, 1]))
)
def test_tokens_ahead_are_those_that_are_served_before(waiting, served, newcomer):
    """Up to one request of each other key, since a turn is a whole request."""
    queue = filled(*waiting)
    for _ in range(min(served, len(queue))):
        queue.pop()
    told = queue.tokens_ahead(newcomer.key, newcomer.priority)
    queue.push(newcomer)
    ahead = 0
    while (request := queue.pop()) is not newcomer:
        ahead += request.tokens
    assert abs(ahead - told) <= 3 * LARGEST


class Serving(RuleBasedStateMachine):
    """Any order of arrivals, turns and departures, against plain book-keeping.

    Within one priority, two keys between the same two moments, both with something waiting all the time, are never
    further apart than one largest request each (Goyal et al., theorem 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[Request] = FairQueue()
        self.waiting: list[Request] = []
        self.numbers = count()
        self.lead: dict[tuple[int, str, str], int] = {}  # tokens by which a key is ahead of another, both waiting

    def backlogged(self, priority: int) -> set[str]:
        return {request.key for request in self.waiting if request.priority == priority}

    def forget_rested(self) -> None:
        for priority, one, other in list(self.lead):
            if not {one, other} <= self.backlogged(priority):
                del self.lead[priority, one, other]

    @rule(key=st.sampled_from("abc"), tokens=st.integers(1, LARGEST), priority=st.sampled_from([0, 0, 0, 1]))
    def arrive(self, key: str, tokens: int, priority: int) -> None:
        request = Request(key, tokens, priority, next(self.numbers))
        self.queue.push(request)
        self.waiting.append(request)
        for other in self.backlogged(priority) - {key}:
            for pair in ((key, other), (other, key)):
                self.lead.setdefault((priority, *pair), 0)

    @precondition(lambda self: self.waiting)
    @rule()
    def serve(self) -> None:
        request = self.queue.pop()
        self.waiting.remove(request)
        assert request.priority == min([request.priority, *(other.priority for other in self.waiting)])
        older = [r for r in self.waiting if (r.key, r.priority) == (request.key, request.priority)]
        assert all(request.number < other.number for other in older), "a key's requests overtook each other"
        for (priority, one, other), lead in list(self.lead.items()):
            if priority == request.priority and request.key in (one, other):
                self.lead[priority, one, other] = lead + (request.tokens if request.key == one else -request.tokens)
        self.forget_rested()
        assert all(lead <= 2 * LARGEST for lead in self.lead.values()), "one key is ahead of another"

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        self.queue.remove(request)
        self.waiting.remove(request)
        self.forget_rested()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert self.queue.tokens == sum(request.tokens for request in self.waiting)
        assert set(self.queue) == set(self.waiting)


TestServing = Serving.TestCase


@given(st.integers(1, LARGEST), st.lists(st.integers(1, LARGEST), min_size=1, max_size=20))
def test_nobody_starves_however_fast_others_come(own, others):
    """One request waits while two other keys always have more: it is served after at most its fair turn."""
    queue = filled(*(Request(key, tokens) for tokens in others for key in "bc"))
    for _ in range(len(others)):
        queue.pop()
    mine = Request("a", own)
    queue.push(mine)
    served = 0
    while (request := queue.pop()) is not mine:
        served += request.tokens
        queue.push(Request(request.key, request.tokens))
        assert served <= 4 * LARGEST
