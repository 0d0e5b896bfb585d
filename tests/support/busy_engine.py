"""A process with an engine that never rests: `python -m tests.support.busy_engine FOLDER TENSOR PIPELINE`."""

from __future__ import annotations

import itertools
import sys

from replicas.build import build_engine
from replicas.config import EngineConfig
from tests.support.engines import request


def main(folder: str, tensor: int, pipeline: int) -> None:
    config = EngineConfig(
        block_size=4, kv_cache_memory=1024**2, tensor_parallel=tensor, pipeline_parallel=pipeline, max_running=8
    )
    engine = build_engine(folder, config)
    print("ready", flush=True)
    for index in itertools.count():
        engine.add(request(str(index), [3 + index % 7] * 10, 40, ignore_eos=True))
        for _ in range(10):
            engine.step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
