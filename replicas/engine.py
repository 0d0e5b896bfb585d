"""One model's continuous batching loop: add requests, step, hand out tokens.

Single-threaded and free of I/O: whoever owns the engine decides when to step and what to do with the outputs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from replicas.budget import prefill_budget
from replicas.config import EngineConfig
from replicas.executor import Executor
from replicas.grammar.masks import MaskFiller, PlannedMasks
from replicas.grammar.matcher import Matcher
from replicas.kv.blocks import BlockPool
from replicas.kv.prefix import root_key
from replicas.messages import FinishReason, GenerateRequest, LoadReport, RequestSummary, StepOutput
from replicas.pace import Pace
from replicas.plan import StepPlan
from replicas.request import Sequence
from replicas.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the engine must know of the model it serves. `name` tags the KV block keys; `max_model_len` bounds
    prompt plus output and is never more than the KV pool can hold."""

    name: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    num_blocks: int


class Engine:
    """Raises ValueError from `add` for a request that can never be served."""

    def __init__(
        self, config: EngineConfig, model: ServedModel, executor: Executor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self.model = model
        self._executor = executor
        self._clock = clock
        self._pool = BlockPool(model.num_blocks)
        self._scheduler = Scheduler(config, self._pool)
        self._sequences: dict[str, Sequence] = {}
        self._submitted: deque[tuple[StepPlan, float]] = deque()
        self._last_collect = 0.0
        self._arrivals = 0
        self._mask_filler = MaskFiller(model.vocab_size)
        self._reset_statistics()
        self.on_begin: Callable[[list[GenerateRequest]], None] = lambda requests: None
        """Told which requests enter the batch before the step that admits them is computed."""

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything, be it only to tell the executor of freed slots."""
        return self._scheduler.has_work

    @property
    def idle(self) -> bool:
        """No request is waiting or running."""
        return not self._sequences

    def add(self, request: GenerateRequest, matcher: Matcher | None = None) -> None:
        """Queue a request. One with a grammar needs a matcher for it, and is never served without."""
        self._validate(request)
        if matcher is not None:
            matcher.replay(request.token_ids[request.num_prompt :])
        elif request.sampling.grammar is not None:
            raise ValueError("the constraint on the output has not been compiled")
        self._arrivals += 1
        sequence = Sequence(
            request=request,
            arrival=self._clock(),
            order=self._arrivals,
            root_key=root_key(self.model.name, self.config.block_size, request.cache_salt),
            token_ids=list(request.token_ids),
            block_keys=self._trusted_keys(request),
            matcher=matcher,
        )
        sequence.uncached_tokens = self._scheduler.uncached_tokens(sequence)
        if self._pace.prefill_rate:
            sequence.prefill_seconds = sequence.uncached_tokens / self._pace.prefill_rate
        self._sequences[request.request_id] = sequence
        self._scheduler.enqueue(sequence)

    def abort(self, request_id: str) -> RequestSummary | None:
        """End a request now and free its blocks. None if it is not (or no longer) here."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return None
        self._scheduler.finish(sequence, "abort")
        self._count_prompt(sequence)
        return sequence.summary()

    def step(self) -> StepOutput:
        """Keep the executor busy, then collect its oldest step and account for it."""
        self._submit_plans()
        if not self._submitted:
            return StepOutput(kv_events=self._pool.drain_events())
        plan, started = self._submitted.popleft()
        grown = self._scheduler.apply(self._executor.collect())
        if plan.work:
            now = self._clock()
            self._steps += 1
            self._pace.observe(now - max(started, self._last_collect), plan.num_decodes, plan.num_prefill_tokens)
            self._last_collect = now
        self._generated_tokens += len(grown)
        events, finished = [], []
        for sequence in grown:
            reason = self._finish_reason(sequence)
            if reason is not None:
                self._scheduler.finish(sequence, reason)
            events.append(sequence.event())
            if reason is None:
                continue
            del self._sequences[sequence.request.request_id]
            self._count_prompt(sequence)
            finished.append(sequence.summary())
        return StepOutput(tuple(events), tuple(finished), self._pool.drain_events())

    def _submit_plans(self) -> None:
        """Plan steps until as many are in flight as the executor takes, or nothing is left to plan."""
        while len(self._submitted) < self._executor.depth:
            now = self._clock()
            plan = self._scheduler.plan(now, self._prefill_budget, self._executor.depth)
            if plan is None:
                return
            if plan.admitted:
                self.on_begin([sequence.request for sequence in self._scheduler.admitted])
            self._executor.submit(self._masked(plan))
            self._submitted.append((plan, now))

    def _masked(self, plan: StepPlan) -> StepPlan:
        """The plan with masks for the rows of constrained sequences that a token is drawn for."""
        constrained = [
            (index, sequence.matcher)
            for index, (sequence, num_tokens) in enumerate(self._scheduler.latest_work)
            if sequence.matcher is not None and num_tokens == sequence.num_pending
        ]
        if not constrained:
            return plan
        rows, matchers = zip(*constrained, strict=True)
        return replace(plan, masks=PlannedMasks(rows, matchers, self._mask_filler))

    def load(self) -> LoadReport:
        """The engine's state between two steps."""
        scheduler, pace = self._scheduler, self._pace
        return LoadReport(
            running=sum(sequence.finish_reason is None for sequence in scheduler.running),
            waiting=scheduler.num_waiting,
            waiting_prefill_tokens=sum(s.uncached_tokens for s in scheduler.waiting)
            + sum(s.num_pending for s in scheduler.running if not s.is_decoding),
            kv_blocks_total=self._pool.num_blocks,
            kv_blocks_free=self._pool.num_free,
            step_seconds=pace.step_seconds,
            prefill_rate=pace.prefill_rate,
            decode_rate=pace.decode_rate,
            decode_step_seconds=pace.decode_step_seconds,
            steps_total=self._steps,
            preemptions_total=scheduler.preemptions,
            prefix_query_tokens_total=self._query_tokens,
            prefix_hit_tokens_total=self._hit_tokens,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generated_tokens,
        )

    def cached_keys(self) -> tuple[bytes, ...]:
        """The keys of all KV blocks whose content can be found again."""
        return self._pool.cached_keys()

    def reset(self) -> None:
        """Forget cached content, pace and counters of an idle engine, as if it had just started."""
        assert not self.has_work, "an engine with work cannot be reset"
        self._pool.clear()
        self._pool.drain_events()
        self._reset_statistics()

    def check_integrity(self) -> None:
        """Prove that pool, scheduler and engine agree (between two steps). Raises AssertionError."""
        self._scheduler.check_integrity()
        known = {id(sequence) for sequence in self._sequences.values()}
        ours = (*self._scheduler.running, *self._scheduler.waiting)
        queued = {id(sequence) for sequence in ours if sequence.finish_reason is None}
        assert known == queued, "a request is known but not queued, or queued but not known"

    def close(self) -> None:
        self._executor.close()

    def _reset_statistics(self) -> None:
        self._pace = Pace()
        self._steps = self._query_tokens = self._hit_tokens = self._prompt_tokens = self._generated_tokens = 0

    def _validate(self, request: GenerateRequest) -> None:
        if request.request_id in self._sequences:
            raise ValueError(f"request_id {request.request_id!r} is already being served")
        if request.num_prompt < 1:
            raise ValueError("prompt is empty, but must have at least one token")
        ids = (*request.token_ids, *request.sampling.token_ids)
        if not 0 <= min(ids) <= max(ids) < self.model.vocab_size:
            wrong = next(token_id for token_id in ids if not 0 <= token_id < self.model.vocab_size)
            raise ValueError(f"token id {wrong} must be between 0 and {self.model.vocab_size - 1}")
        prompt, asked, limit = request.num_prompt, request.sampling.max_tokens, self.model.max_model_len
        if prompt + asked > limit:
            raise ValueError(
                f"the prompt has {prompt} tokens and max_tokens is {asked}, together more than "
                f"the model's limit of {limit} tokens"
            )

    def _trusted_keys(self, request: GenerateRequest) -> list[bytes]:
        """The gateway's keys, unless they cannot be those of this prompt."""
        full_blocks = len(request.token_ids) // self.config.block_size
        return list(request.block_keys) if len(request.block_keys) == full_blocks else []

    def _prefill_budget(self, num_decodes: int) -> int:
        return prefill_budget(
            max_batched_tokens=self.config.max_batched_tokens,
            num_decodes=num_decodes,
            itl_objective=self.config.itl_objective,
            decode_seconds=self._pace.decode_step_seconds,
            prefill_rate=self._pace.prefill_rate,
            smallest_chunk=self.config.block_size,
        )

    def _finish_reason(self, sequence: Sequence) -> FinishReason | None:
        sampling, token_id = sequence.request.sampling, sequence.token_ids[-1]
        if sequence.matcher is not None and not sequence.matcher.accept(token_id):
            return "error"  # other parameters left no token that the constraint allows
        if sequence.matcher is not None and sequence.matcher.is_over:
            return "stop"
        if token_id in sampling.stop_token_ids:
            return "stop"
        if token_id in self.model.eos_token_ids and not sampling.ignore_eos:
            return "stop"
        return "length" if sequence.num_output >= sampling.max_tokens else None

    def _count_prompt(self, sequence: Sequence) -> None:
        """Count a request's prompt once, when it ends, as its own usage states it."""
        if sequence.first_scheduled is None:
            return
        self._prompt_tokens += sequence.num_prompt
        self._query_tokens += sequence.num_prompt
        self._hit_tokens += sequence.cached_tokens
