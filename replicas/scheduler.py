"""Which tokens of which sequences are computed in the next step.

There are no prefill and decode phases (as in vLLM's scheduler and Sarathi-Serve, Agrawal et al., OSDI 2024): every
sequence has tokens to catch up with, and a step spends one token budget on running decodes, then on prefills in the
order of their rank, under way or to be admitted. When KV blocks run out the least deserving sequence is preempted and
recomputed later.
Pure bookkeeping: no clock, no randomness, no tensors.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from replicas.config import EngineConfig
from replicas.kv.blocks import BlockPool
from replicas.kv.prefix import chain_keys
from replicas.messages import FinishReason
from replicas.plan import Admission, StepPlan, StepResults, Work
from replicas.request import Sequence

Rank = tuple[float, int]
BEHIND_ALL: Rank = (float("inf"), 1 << 63)

# "shortest" ranks by when a prompt would be done if it were alone: a short one overtakes a long one that came less than
# their difference before it, and no prompt waits for any that came later than its own length after it.
RANKS: dict[str, Callable[[Sequence], Rank]] = {
    "fcfs": lambda sequence: (0, sequence.order),
    "priority": lambda sequence: (sequence.request.priority, sequence.order),
    "deadline": lambda sequence: (sequence.deadline, sequence.order),
    "shortest": lambda sequence: (sequence.arrival + sequence.prefill_seconds, sequence.order),
}


@dataclass(slots=True)
class _Draft:
    """A plan in the making: the prefill tokens that it may still take, and what it does so far."""

    now: float
    budget: int
    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    num_decodes: int = 0


class Scheduler:
    """Owns the waiting queue, the running sequences (in order of their rank) and their blocks. Plans are applied in
    the order they were made; several may be in flight. `admitted` are the sequences that the last plan admitted."""

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self._config = config
        self._pool = pool
        self._rank = RANKS[config.policy]
        self._waiting: list[tuple[Rank, Sequence]] = []
        self.running: list[Sequence] = []
        self.admitted: list[Sequence] = []
        self._free_slots = list(range(config.max_running))[::-1]
        self._released: list[int] = []
        self._preempted = False
        self._in_flight: deque[list[tuple[Sequence, int]]] = deque()
        self._watermark = max(1, pool.num_blocks // 100)
        self.preemptions = 0

    @property
    def waiting(self) -> list[Sequence]:
        return [sequence for _, sequence in self._waiting]

    @property
    def latest_work(self) -> list[tuple[Sequence, int]]:
        """The work rows of the plan made last: sequences, and how many tokens of each are computed."""
        return self._in_flight[-1]

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._waiting or self._released or self._in_flight)

    def uncached_tokens(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that no cached block holds at present."""
        return sequence.num_tokens - len(self._match_prefix(sequence)) * self._config.block_size

    def enqueue(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (self._rank(sequence), sequence))

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence and free its blocks: at once, or if a step in flight names them, when it is applied."""
        sequence.finish_reason = reason
        if sequence.in_flight:
            return
        if sequence.slot < 0:
            self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
            heapq.heapify(self._waiting)
            return
        self.running.remove(sequence)
        self._leave(sequence)

    def plan(self, now: float, prefill_budget: Callable[[int], int], depth: int = 1) -> StepPlan | None:
        """The next step's work: one token for each running decode and, told how many these are, at most
        `prefill_budget` tokens for prefills. With up to `depth` steps in flight, each takes its share of the running
        sequences, and none that another one has. None if there is nothing to do."""
        ready = [sequence for sequence in self.running if not sequence.in_flight][: -(-len(self.running) // depth)]
        decoding = sum(sequence.is_decoding for sequence in ready)
        draft = _Draft(now, min(prefill_budget(decoding), self._config.max_batched_tokens - decoding))
        self.admitted = []
        starved = False
        for sequence in ready:
            if sequence.slot < 0:
                break  # preempted for a better one above, and so are all behind it
            if not sequence.is_decoding and not starved:
                self._admit_waiting(draft, self._rank(sequence))
            starved |= not self._continue(sequence, draft)
        if not starved:
            self._admit_waiting(draft, BEHIND_ALL)
        released, self._released, self._preempted = tuple(self._released), [], False
        if not draft.work and not released:
            return None
        self._in_flight.append(draft.rows)
        return StepPlan(released, tuple(draft.admitted), tuple(draft.work), draft.num_decodes)

    def apply(self, results: StepResults) -> list[Sequence]:
        """Record the results of the oldest step in flight. Returns the sequences that got a token."""
        step = self._in_flight.popleft()
        grown = []
        for row, ((sequence, num_tokens), token_id) in enumerate(zip(step, results.token_ids, strict=True)):
            sequence.in_flight = False
            sequence.num_computed += num_tokens
            assert (token_id is None) == (sequence.num_pending > 0), "sampled before all tokens were computed"
            if sequence.finish_reason is not None:
                self.finish(sequence, sequence.finish_reason)
                continue
            if row in results.prompt_logprobs:
                sequence.prompt_logprobs += results.prompt_logprobs[row]
            if token_id is not None:
                sequence.token_ids.append(token_id)
                grown.append(sequence)
            if row in results.logprobs:
                sequence.logprobs.append(results.logprobs[row])
        return grown

    def check_integrity(self) -> None:
        """Prove that blocks, slots and queues agree."""
        self._pool.check_integrity(block_id for sequence in self.running for block_id in sequence.block_ids)
        slots = [sequence.slot for sequence in self.running] + self._free_slots
        assert sorted(slots) == list(range(self._config.max_running)), "slots are lost or shared"
        assert all(not s.block_ids and s.slot < 0 for s in self.waiting), "a waiting sequence holds blocks or a slot"
        for sequence in self.running:
            assert sequence.num_computed <= len(sequence.block_ids) * self._config.block_size, "tokens without blocks"

    def _continue(self, sequence: Sequence, draft: _Draft) -> bool:
        """Plan the next tokens of a running sequence, if any. False if there is no room for their blocks."""
        is_decoding = sequence.is_decoding
        num_tokens = 1 if is_decoding else min(sequence.num_pending, draft.budget)
        if num_tokens == 0:
            return True
        if not self._make_room(self._blocks_missing(sequence, sequence.num_computed + num_tokens), sequence):
            return False
        self._assign(sequence, num_tokens, draft)
        draft.num_decodes += is_decoding
        draft.budget -= 0 if is_decoding else num_tokens
        return True

    def _assign(self, sequence: Sequence, num_tokens: int, draft: _Draft) -> None:
        """Compute the next `num_tokens` tokens of a sequence in this step."""
        num_computed = sequence.num_computed + num_tokens
        new_blocks = self._blocks_missing(sequence, num_computed)
        new_block_ids = self._pool.allocate(new_blocks) if new_blocks else []
        sequence.block_ids += new_block_ids
        sequence.in_flight = True
        self._publish(sequence, num_computed)
        draft.rows.append((sequence, num_tokens))
        draft.work.append(Work(sequence.slot, num_tokens, tuple(new_block_ids)))

    def _blocks_missing(self, sequence: Sequence, num_tokens: int) -> int:
        return -(-num_tokens // self._config.block_size) - len(sequence.block_ids)

    def _make_room(self, blocks: int, asking: Sequence) -> bool:
        """Preempt from the back of the ranking until `blocks` are free, `asking` itself at last. False if it must
        wait: it was preempted, or the next victim is in flight."""
        while self._pool.num_free < blocks:
            victim = self.running[-1]
            if victim.in_flight:
                return False
            self._preempt(victim)
            if victim is asking:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._leave(sequence)
        sequence.num_computed = sequence.num_published = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self._preempted = True
        self.enqueue(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._pool.release(sequence.block_ids)
        sequence.block_ids = []
        self._free_slots.append(sequence.slot)
        self._released.append(sequence.slot)
        sequence.slot = -1

    def _admit_waiting(self, draft: _Draft, before: Rank) -> None:
        """Admit from the head of the queue those that rank `before` some other, while slots, blocks and budget last,
        and plan their first chunks."""
        while draft.budget > 0 and self._waiting and self._free_slots and not self._preempted:
            rank, sequence = self._waiting[0]
            hits = self._match_prefix(sequence) if rank < before else []
            if rank >= before or not self._fits(sequence, hits):
                return
            heapq.heappop(self._waiting)
            draft.admitted.append(self._admit(sequence, hits, draft.now))
            self.admitted.append(sequence)
            num_tokens = min(sequence.num_pending, draft.budget)
            draft.budget -= num_tokens
            self._assign(sequence, num_tokens, draft)

    def _fits(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether all its tokens fit beside what the prefills under way still need and a watermark, which keeps
        admissions from thrashing (and is of no use while nothing runs)."""
        wanted = self._blocks_missing(sequence, sequence.num_tokens) - len(hits) + self._pool.num_unreferenced(hits)
        if not self.running:
            return wanted <= self._pool.num_free
        promised = sum(self._blocks_missing(other, other.num_tokens) for other in self.running)
        return wanted + promised + self._watermark <= self._pool.num_free

    def _admit(self, sequence: Sequence, hits: list[int], now: float) -> Admission:
        """Move a waiting sequence to the running ones, on its cached prefix."""
        self._pool.acquire(hits)
        sequence.block_ids = hits
        sequence.num_computed = len(hits) * self._config.block_size
        sequence.num_published = len(hits)
        if sequence.first_scheduled is None:
            sequence.first_scheduled = now
            sequence.cached_tokens = min(sequence.num_computed, sequence.num_prompt)
        sequence.slot = self._free_slots.pop()
        insort(self.running, sequence, key=self._rank)
        return Admission(
            sequence.slot,
            tuple(sequence.token_ids),
            sequence.num_prompt,
            sequence.num_computed,
            tuple(hits),
            sequence.request.sampling,
            sequence.num_scored,
        )

    def _match_prefix(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the sequence's prefix. At least its last token is left to compute, and all behind which
        log probabilities of the prompt are still wanted."""
        if not self._config.prefix_caching:
            return []
        num_scored = sequence.num_scored
        known = num_scored if num_scored < sequence.num_prompt else sequence.num_tokens
        self._extend_keys(sequence, sequence.num_tokens)
        return self._pool.match(sequence.block_keys[: (known - 1) // self._config.block_size])

    def _publish(self, sequence: Sequence, num_computed: int) -> None:
        """Name the blocks that a step fills, as soon as it is planned: whoever finds them is computed after it, or in
        it, and a step writes all its keys and values of a layer before it reads any."""
        first, last = sequence.num_published, num_computed // self._config.block_size
        if not self._config.prefix_caching or first == last:
            return
        self._extend_keys(sequence, num_computed)
        parent = sequence.block_keys[first - 1] if first else sequence.root_key
        self._pool.publish(sequence.block_ids[first:last], sequence.block_keys[first:last], parent)
        sequence.num_published = last

    def _extend_keys(self, sequence: Sequence, num_tokens: int) -> None:
        size, known = self._config.block_size, len(sequence.block_keys)
        if num_tokens // size <= known:
            return
        parent = sequence.block_keys[-1] if known else sequence.root_key
        sequence.block_keys += chain_keys(parent, sequence.token_ids[known * size : num_tokens], size)
