"""What gateways and embedders say to each other: msgpack, never pickle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from replicas.embedding.config import EmbeddingConfig

MOST_SEQUENCES = 64  # of one call; a large request is shared out among the replicas
MOST_TOKENS = 64 * 1024  # of one call, but for one sequence that is longer than that


class EmbedderSpec(msgspec.Struct, frozen=True):
    """What a replica runs. A batch waits for at most `batch_wait` seconds until it has `max_batch_size` sequences."""

    model_path: str
    config: EmbeddingConfig
    max_batch_size: int = 32
    batch_wait: float = 0.005


class EmbedderInfo(msgspec.Struct, frozen=True):
    """What a started replica says of itself. `dimensions` are the lengths to which vectors may be cut, or any."""

    model_path: str
    size: int
    max_model_len: int
    vocab_size: int
    pooling: str
    dtype: str
    dimensions: tuple[int, ...]
    any_dimension: bool
    max_batch_size: int
    batch_wait: float
    stages: tuple[tuple[str, float], ...] = ()


class Vectors(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a call: `data` holds the vectors in float32, little endian, one after the other. Of each it says
    how many sequences were computed in its batch, and how many seconds it waited for that to begin."""

    data: bytes
    batch_sizes: tuple[int, ...]
    waits: tuple[float, ...]

    def rows(self) -> np.ndarray:
        return np.frombuffer(self.data, dtype="<f4").reshape(len(self.waits), -1)


def calls(sequences: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """The sequences of one request, in as many calls as they need."""
    call: list[Sequence[int]] = []
    num_tokens = 0
    for sequence in sequences:
        if call and (len(call) == MOST_SEQUENCES or num_tokens + len(sequence) > MOST_TOKENS):
            yield call
            call, num_tokens = [], 0
        call.append(sequence)
        num_tokens += len(sequence)
    if call:
        yield call


encode = msgspec.msgpack.Encoder().encode
decode_sequences = msgspec.msgpack.Decoder(list[list[int]]).decode
decode_vectors = msgspec.msgpack.Decoder(Vectors).decode
decode_info = msgspec.msgpack.Decoder(EmbedderInfo).decode
