"""Small simulated clusters."""

from __future__ import annotations

from random import Random

from deploy.simulate.cluster import Shape
from deploy.simulate.policies import PowerOfTwo
from replicas.config import EngineConfig


def small_shape(replicas: int = 4, gateways: int = 1, num_blocks: int = 4000, block_size: int = 16) -> Shape:
    engine = EngineConfig(block_size=block_size, max_batched_tokens=2048, max_running=64)
    return Shape(replicas, num_blocks, engine, gateways)


def two_choices(random: Random) -> PowerOfTwo:
    return PowerOfTwo(random)
