"""An executor without a model that proves the scheduler right: it keeps what each KV block would hold, and whenever
a token is computed it checks that every earlier token of its sequence is where the block table says."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import chain

from replicas.kv.prefix import chain_keys
from replicas.messages import TokenLogprobs
from replicas.plan import StepPlan, StepResults
from replicas.sampling.params import SamplingParams

VOCAB_SIZE = 97


def next_token(token_ids: list[int]) -> int:
    """The 'model': depends on every token before, so a wrong history shows."""
    return chain_keys(b"model", token_ids, len(token_ids))[0][0] % VOCAB_SIZE


def continuation(prompt: list[int], count: int) -> list[int]:
    """What any right schedule must generate."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def logprobs_of(token_ids: list[int], position: int) -> TokenLogprobs:
    """A 'log probability' that tells the token's place and whether its history is the right one."""
    return TokenLogprobs(-float(position), ((token_ids[position], -float(next_token(token_ids[:position]))),))


@dataclass
class Mirror:
    token_ids: list[int]
    num_prompt: int
    num_computed: int
    num_scored: int
    block_ids: list[int]
    sampling: SamplingParams


class CheckingExecutor:
    def __init__(self, num_blocks: int, block_size: int, depth: int = 1) -> None:
        self.block_size = block_size
        self.depth = depth
        self.in_flight: deque[set[int]] = deque()
        self.blocks: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.mirrors: dict[int, Mirror] = {}
        self.results: deque[StepResults] = deque()
        self.step_sizes: list[int] = []

    def submit(self, plan: StepPlan) -> None:
        slots = {work.slot for work in plan.work}
        assert len(self.in_flight) < self.depth, "more steps are in flight than were asked for"
        assert all(slots.isdisjoint(others) for others in self.in_flight), "a sequence is in two steps at once"
        assert all(others.isdisjoint(plan.released) for others in self.in_flight), "a slot in flight was released"
        self.in_flight.append(slots)
        for slot in plan.released:
            del self.mirrors[slot]
        for admission in plan.admitted:
            assert admission.slot not in self.mirrors, "a slot was given twice"
            scored = max(admission.num_scored, 1)
            assert admission.num_computed < scored or scored >= admission.num_prompt, "a token will not be scored"
            self.mirrors[admission.slot] = Mirror(
                list(admission.token_ids),
                admission.num_prompt,
                admission.num_computed,
                scored,
                list(admission.block_ids),
                admission.sampling,
            )
        for work in plan.work:
            self.mirrors[work.slot].block_ids += work.new_block_ids
        mirrors = [self.mirrors[work.slot] for work in plan.work]
        written = [self._write(mirror, work.num_tokens) for mirror, work in zip(mirrors, plan.work, strict=True)]
        assert len(set(chain(*written))) == sum(map(len, written)), "two sequences wrote the same place"
        self.step_sizes.append(sum(map(len, written)))
        scores = {row: self._score(mirror) for row, mirror in enumerate(mirrors)}
        drawn = [self._sample(mirror) for mirror in mirrors]
        logprobs = {
            row: logprobs_of(mirror.token_ids, len(mirror.token_ids) - 1)
            for row, (mirror, token_id) in enumerate(zip(mirrors, drawn, strict=True))
            if token_id is not None and mirror.sampling.logprobs is not None
        }
        self.results.append(StepResults(drawn, logprobs, scores))

    def collect(self) -> StepResults:
        self.in_flight.popleft()
        return self.results.popleft()

    def close(self) -> None:
        self.mirrors.clear()

    def _write(self, mirror: Mirror, num_tokens: int) -> list[tuple[int, int]]:
        assert 0 < num_tokens <= len(mirror.token_ids) - mirror.num_computed
        places = []
        for position in range(mirror.num_computed, mirror.num_computed + num_tokens):
            place = mirror.block_ids[position // self.block_size], position % self.block_size
            self.blocks[place[0]][place[1]] = mirror.token_ids[position]
            places.append(place)
        mirror.num_computed += num_tokens
        return places

    def _score(self, mirror: Mirror) -> list[TokenLogprobs]:
        """Of the prompt tokens that are wanted, those whose history has now been computed."""
        last = min(mirror.num_computed + 1, mirror.num_prompt)
        first, mirror.num_scored = mirror.num_scored, max(mirror.num_scored, last)
        return [logprobs_of(mirror.token_ids, position) for position in range(first, last)]

    def _sample(self, mirror: Mirror) -> int | None:
        held = [
            self.blocks[mirror.block_ids[position // self.block_size]][position % self.block_size]
            for position in range(mirror.num_computed)
        ]
        assert held == mirror.token_ids[: mirror.num_computed], "a block was overwritten or never filled"
        if mirror.num_computed < len(mirror.token_ids):
            return None
        mirror.token_ids.append(next_token(mirror.token_ids))
        return mirror.token_ids[-1]
