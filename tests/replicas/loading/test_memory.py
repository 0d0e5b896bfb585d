"""A rank that loads its share of a model never holds much more than that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig

from tests.support.checkpoints import write_tiny

MIB = 1024**2
SLACK = 8 * MIB  # what the allocator and a thread need

# Prints the bytes of the rank's parameters, of the largest tensor, and the growth of the process's own memory at its
# peak. Pages of the mapped file don't count: the system takes them back when it needs them.
MEASURE = """
import sys, threading, time
from pathlib import Path
import torch
from parallel.mesh import Mesh
from replicas.loading.checkpoint import load_model, open_checkpoint

def own_memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], own_memory())
        time.sleep(0.0005)

checkpoint = open_checkpoint(Path(sys.argv[1]))
mesh = Mesh(*map(int, sys.argv[2:5]))
before, done = own_memory(), threading.Event()
peak = [before]
thread = threading.Thread(target=watch)
thread.start()
model = load_model(checkpoint, mesh, torch.float32, torch.device("cpu"))
done.set()
thread.join()
largest = max(4 * torch.Size(shape).numel() for shape in checkpoint.shapes.values())
print(sum(p.nbytes for p in model.parameters()), largest, peak[0] - before)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    write_tiny(
        folder,
        LlamaConfig(
            vocab_size=16_000,
            hidden_size=512,
            intermediate_size=2048,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=8,
        ),
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("tensor", "pipeline", "rank"), [(1, 1, 0), (2, 1, 1), (4, 1, 2), (1, 2, 1), (2, 2, 3)])
def test_loading_takes_the_share_and_one_tensor_at_most(folder, tensor, pipeline, rank):
    command = [sys.executable, "-c", MEASURE, str(folder), str(tensor), str(pipeline), str(rank)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    share, largest, growth = map(int, output.split())
    assert share > 20 * MIB
    assert share / 2 < growth <= share + largest + SLACK
