"""Engine builders for engine processes: "tests.support.builders:checking" and the like."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable

from replicas.config import EngineConfig
from replicas.engine import Engine, ServedModel
from replicas.plan import StepPlan, StepResults
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


class ParrotExecutor:
    """A 'model' that says the prompt's tokens again, from the beginning and over and over: any text can be forced
    out of it by sending that text as the prompt."""

    depth = 1

    def __init__(self) -> None:
        self.mirrors: dict[int, tuple[list[int], int, int]] = {}
        self.results: deque[list[int | None]] = deque()

    def submit(self, plan: StepPlan) -> None:
        for slot in plan.released:
            del self.mirrors[slot]
        for admission in plan.admitted:
            self.mirrors[admission.slot] = list(admission.token_ids), admission.num_prompt, admission.num_computed
        self.results.append([self._advance(work.slot, work.num_tokens) for work in plan.work])

    def collect(self) -> StepResults:
        time.sleep(0.001)
        return StepResults(self.results.popleft())

    def close(self) -> None:
        self.mirrors.clear()

    def _advance(self, slot: int, num_tokens: int) -> int | None:
        token_ids, num_prompt, num_computed = self.mirrors[slot]
        num_computed += num_tokens
        self.mirrors[slot] = token_ids, num_prompt, num_computed
        if num_computed < len(token_ids):
            return None
        token_ids.append(token_ids[(len(token_ids) - num_prompt) % num_prompt])
        return token_ids[-1]


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
