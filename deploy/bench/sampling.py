"""`mobula bench sampling`: what each wish for the sampling of tokens adds to a decode step, if a whole batch has it.

In processor time of one thread, all wishes in turn, round after round; a wish's figure is that of its shortest step.
So what else the machine does counts little.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from replicas.engine import Engine
from replicas.messages import GenerateRequest
from replicas.sampling.params import SamplingParams

PROMPT_TOKENS = 128
STEPS = 16
PLAIN = "greedy, nothing else"

WISHES: Mapping[str, dict[str, Any]] = {
    PLAIN: {},
    "repetition penalty": {"repetition_penalty": 1.2},
    "frequency and presence penalty": {"frequency_penalty": 0.5, "presence_penalty": 0.5},
    "300 biases": {"logit_bias": tuple((7 * index, 1.0) for index in range(300))},
    "1000 allowed tokens": {"allowed_token_ids": tuple(range(1000))},
    "50 bad words": {"bad_words": tuple((index, index + 1) for index in range(50))},
    "min_tokens": {"min_tokens": STEPS},
    "logprobs": {"logprobs": 0},
    "logprobs and top 5": {"logprobs": 5},
    "logprobs and top 20": {"logprobs": 20},
    "drawn at temperature 1": {"temperature": 1.0},
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a decode step in which every request has the wish."""

    wish: str
    step_ms: float
    added_ms: float
    added_share: float


def measure(engine: Engine, batch: int, rounds: int) -> list[Cost]:
    torch.set_num_threads(1)
    shortest = dict.fromkeys(WISHES, math.inf)
    for _ in range(rounds):
        for name, wish in WISHES.items():
            shortest[name] = min(shortest[name], step_seconds(engine, batch, wish))
    plain = shortest[PLAIN]
    return [Cost(name, best * 1e3, (best - plain) * 1e3, best / plain - 1) for name, best in shortest.items()]


def step_seconds(engine: Engine, batch: int, wish: Mapping[str, Any]) -> float:
    """The shortest decode step of a batch of requests with equal wishes. Their prompts are always the same, so from the
    second time on they come from the cache."""
    for index in range(batch):
        draw = random.Random(index)
        prompt = tuple(draw.randrange(engine.model.vocab_size) for _ in range(PROMPT_TOKENS))
        values = {"temperature": 0.0, "max_tokens": STEPS + 2, "ignore_eos": True, "seed": index, **wish}
        engine.add(GenerateRequest(str(index), prompt, SamplingParams(**values)))
    seconds = []
    while not engine.idle:
        started = time.process_time()
        events = engine.step().events
        if len(events) == batch and all(event.offset for event in events):
            seconds.append(time.process_time() - started)
    return min(seconds)


def lines(costs: Sequence[Cost]) -> list[str]:
    return [
        "| what all requests ask for | step, ms | added, ms | added |",
        "|---|---|---|---|",
        *(f"| {cost.wish} | {cost.step_ms:.1f} | {cost.added_ms:+.2f} | {cost.added_share:+.1%} |" for cost in costs),
    ]


def as_json(costs: Sequence[Cost]) -> dict[str, Any]:
    return {"costs": [asdict(cost) for cost in costs]}
