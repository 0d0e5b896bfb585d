"""Engine builders for engine processes: "tests.support.builders:checking" and the like."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from replicas.config import EngineConfig
from replicas.engine import Engine, ServedModel
from replicas.messages import TokenLogprobs
from replicas.plan import StepPlan, StepResults
from replicas.sampling.params import SamplingParams
from tests.support.checking_executor import VOCAB_SIZE, CheckingExecutor

NUM_BLOCKS = 64


class SlowCheckingExecutor(CheckingExecutor):
    """Takes 2 ms a step, so that a request lives long enough to be watched."""

    def collect(self) -> StepResults:
        time.sleep(0.002)
        return super().collect()


def checking(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    on_stage("nothing", 0.0)
    model = ServedModel("checked", VOCAB_SIZE, NUM_BLOCKS * config.block_size, (), NUM_BLOCKS)
    return Engine(config, model, SlowCheckingExecutor(NUM_BLOCKS, config.block_size))


class LongSteppingExecutor(CheckingExecutor):
    """Takes three seconds a step, longer than a silent process is put up with."""

    def collect(self) -> StepResults:
        time.sleep(3)
        return super().collect()


def long_stepping(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    model = ServedModel("checked", VOCAB_SIZE, NUM_BLOCKS * config.block_size, (), NUM_BLOCKS)
    return Engine(config, model, LongSteppingExecutor(NUM_BLOCKS, config.block_size))


def broken(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    raise ValueError(f"{path} is no model")


def dying(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    os._exit(7)


@dataclass
class Parrot:
    """What a parrot knows of one sequence."""

    token_ids: list[int]
    num_prompt: int
    num_computed: int
    num_scored: int
    sampling: SamplingParams


class ParrotExecutor:
    """A 'model' that says the prompt's tokens again, from the beginning and over and over: any text can be forced
    out of it by sending that text as the prompt. Its log probabilities are `parrot_logprobs`."""

    depth = 1

    def __init__(self) -> None:
        self.mirrors: dict[int, Parrot] = {}
        self.results: deque[StepResults] = deque()

    def submit(self, plan: StepPlan) -> None:
        for slot in plan.released:
            del self.mirrors[slot]
        for admission in plan.admitted:
            self.mirrors[admission.slot] = Parrot(
                list(admission.token_ids),
                admission.num_prompt,
                admission.num_computed,
                admission.num_scored,
                admission.sampling,
            )
        results = StepResults([], logprobs := {}, prompt_logprobs := {})
        for row, work in enumerate(plan.work):
            parrot = self.mirrors[work.slot]
            prompt_logprobs[row] = self._score(parrot, work.num_tokens)
            results.token_ids.append(token_id := self._advance(parrot, work.num_tokens))
            if token_id is not None and parrot.sampling.logprobs is not None:
                logprobs[row] = parrot_logprobs(token_id, parrot.sampling.logprobs)
        self.results.append(results)

    def collect(self) -> StepResults:
        time.sleep(0.001)
        return self.results.popleft()

    def close(self) -> None:
        self.mirrors.clear()

    def _score(self, parrot: Parrot, num_tokens: int) -> list[TokenLogprobs]:
        first = max(parrot.num_computed + 1, parrot.num_scored)
        token_ids = parrot.token_ids[first : min(parrot.num_computed + num_tokens + 1, parrot.num_prompt)]
        return [parrot_logprobs(token_id, parrot.sampling.prompt_logprobs or 0) for token_id in token_ids]

    def _advance(self, parrot: Parrot, num_tokens: int) -> int | None:
        parrot.num_computed += num_tokens
        token_ids, num_prompt = parrot.token_ids, parrot.num_prompt
        if parrot.num_computed < len(token_ids):
            return None
        token_ids.append(token_ids[(len(token_ids) - num_prompt) % num_prompt])
        return token_ids[-1]


def parrot_logprobs(token_id: int, top: int) -> TokenLogprobs:
    """The likeliest is always the token itself."""
    logprob = -(1 + token_id % 8) / 8
    return TokenLogprobs(logprob, tuple((token_id + place, logprob - place) for place in range(top)))


class FragileParrotExecutor(ParrotExecutor):
    """Dies of a prompt that has this token."""

    POISON = 17

    def submit(self, plan: StepPlan) -> None:
        if any(self.POISON in admission.token_ids for admission in plan.admitted):
            time.sleep(0.02)  # in the midst of the step
            os._exit(9)
        super().submit(plan)


PARROT_BLOCKS = 128


def fragile_parrot(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    model = ServedModel("parrot", 49152, config.max_model_len or 512, (2,), PARROT_BLOCKS)
    return Engine(config, model, FragileParrotExecutor())


def parrot(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    """SmolLM2's vocabulary without the model; `max_model_len` 512 unless the configuration says otherwise."""
    model = ServedModel("parrot", 49152, config.max_model_len or 512, (2,), PARROT_BLOCKS)
    return Engine(config, model, ParrotExecutor())
