"""Engines for tests, and what people do with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replicas.config import EngineConfig
from replicas.engine import Engine, ServedModel
from replicas.messages import GenerateRequest, RequestSummary
from replicas.sampling.params import SamplingParams
from tests.support.checking_executor import VOCAB_SIZE, CheckingExecutor


def checking_engine(
    num_blocks: int, config: EngineConfig, clock: Callable[[], float] = lambda: 0.0, depth: int = 1
) -> Engine:
    """An engine over `CheckingExecutor`: no model, exact bookkeeping."""
    model = ServedModel("checked", VOCAB_SIZE, num_blocks * config.block_size, (), num_blocks)
    return Engine(config, model, CheckingExecutor(num_blocks, config.block_size, depth), clock)


def request(
    request_id: str, prompt: Sequence[int], max_tokens: int = 8, salt: str = "", priority: int = 0, **sampling: object
) -> GenerateRequest:
    params = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **sampling})  # type: ignore[arg-type]
    return GenerateRequest(request_id, tuple(prompt), params, cache_salt=salt, priority=priority)


def drain(engine: Engine, max_steps: int = 100_000) -> dict[str, RequestSummary]:
    """Step until idle, checking integrity after every step; summaries by request id."""
    finished: dict[str, RequestSummary] = {}
    for _ in range(max_steps):
        if not engine.has_work:
            return finished
        for summary in engine.step().finished:
            finished[summary.request_id] = summary
        engine.check_integrity()
    raise AssertionError(f"still busy after {max_steps} steps")
