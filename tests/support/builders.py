"""Engine builders for engine processes: "tests.support.builders:checking" and the like."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from replicas.config import EngineConfig
from replicas.engine import Engine, ServedModel
from tests.support.checking_executor import VOCAB_SIZE, CheckingExecutor

NUM_BLOCKS = 64


class SlowCheckingExecutor(CheckingExecutor):
    """Takes 2 ms a step, so that a request lives long enough to be watched."""

    def collect(self) -> list[int | None]:
        time.sleep(0.002)
        return super().collect()


def checking(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    on_stage("nothing", 0.0)
    model = ServedModel("checked", VOCAB_SIZE, NUM_BLOCKS * config.block_size, (), NUM_BLOCKS)
    return Engine(config, model, SlowCheckingExecutor(NUM_BLOCKS, config.block_size))


def broken(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    raise ValueError(f"{path} is no model")


def dying(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    os._exit(7)
