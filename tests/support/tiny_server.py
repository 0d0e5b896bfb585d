"""Runs a command against a gateway that serves a tiny model, such as a fuzzer:

    python -m tests.support.tiny_server COMMAND ... {url} ...

`{url}` stands for the gateway's address. Afterwards the gateway must be healthy and idle, with no block lost.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cluster.codec import DEFAULT_BUILDER
from replicas.config import EngineConfig
from tests.support.checkpoints import write_tiny_with_small_vocabulary
from tests.support.local_gateway import LocalGateway, local_gateway

SETTLING_SECONDS = 5.0


def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_with_small_vocabulary(Path(folder))
        config = EngineConfig(dtype="float32", kv_cache_memory=8 * 1024**2, max_running=8, max_model_len=256)
        with local_gateway(path, config, DEFAULT_BUILDER) as gateway:
            status = subprocess.run([part.replace("{url}", gateway.url) for part in command], check=False).returncode
            return _ails(gateway) or status


def _ails(gateway: LocalGateway) -> int:
    time.sleep(SETTLING_SECONDS)
    with gateway.client() as client:
        health = client.get("/health").status_code
    load = gateway.load()
    print(f"afterwards: health {health}, {load.running} running, {load.waiting} waiting,", end=" ")
    print(f"{load.kv_blocks_free} of {load.kv_blocks_total} blocks free")
    return int((health, load.running, load.waiting, load.kv_blocks_free) != (200, 0, 0, load.kv_blocks_total))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
