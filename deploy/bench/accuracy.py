"""`python -m deploy.bench.accuracy MODEL TEXT...`: what a precision costs in accuracy, on the tokens of some text.

Every precision computes the same tokens as the float32 model does and is held against it: the mean absolute error of
the log-probabilities that the text's own next tokens get, and how often the likeliest token is the same.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch

from parallel.mesh import Mesh
from replicas.batch import ForwardBatch
from replicas.config import EngineConfig
from replicas.layers.attention import allocate_kv_layers
from replicas.loading.checkpoint import Checkpoint, load_model, open_checkpoint
from replicas.loading.precision import resolve_precision
from replicas.text.tokenizer import Tokenizer

CHUNK = 500
BLOCK_SIZE = 16
REFERENCE = EngineConfig(dtype="float32", quantization="none")
PRECISIONS = (
    replace(REFERENCE, dtype="bfloat16"),
    replace(REFERENCE, dtype="bfloat16", quantization="int8"),
    replace(REFERENCE, dtype="bfloat16", quantization="int4"),
    EngineConfig(),
)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Against float32: mean absolute error in nats, share of tokens with the same likeliest successor, and the mean
    negative log-likelihood of the text."""

    name: str
    logprob_error: float
    top1_agreement: float
    mean_nll: float


def measure(checkpoint: Checkpoint, token_ids: list[int]) -> list[Accuracy]:
    expected = _logprobs(checkpoint, REFERENCE, token_ids)
    return [
        _compare(
            resolve_precision(config, checkpoint).name, _logprobs(checkpoint, config, token_ids), expected, token_ids
        )
        for config in (REFERENCE, *PRECISIONS)
    ]


def _compare(name: str, actual: torch.Tensor, expected: torch.Tensor, token_ids: list[int]) -> Accuracy:
    next_ids = torch.tensor(
        [token for at in range(0, len(token_ids), CHUNK) for token in token_ids[at : at + CHUNK][1:]]
    )
    ours, theirs = (x.gather(1, next_ids[:, None]) for x in (actual, expected))
    agreement = (actual.argmax(-1) == expected.argmax(-1)).float().mean()
    return Accuracy(name, (ours - theirs).abs().mean().item(), agreement.item(), -ours.mean().item())


def _logprobs(checkpoint: Checkpoint, config: EngineConfig, token_ids: list[int]) -> torch.Tensor:
    """Log-probabilities of what follows each token but the last of every chunk; chunks know nothing of each other."""
    precision, mesh, device = resolve_precision(config, checkpoint), Mesh(), torch.device("cpu")
    model = load_model(checkpoint, mesh, precision.dtype, device, precision.compute(checkpoint.config, mesh))
    blocks = -(-CHUNK // BLOCK_SIZE)
    parts = []
    for start in range(0, len(token_ids), CHUNK):
        chunk = token_ids[start : start + CHUNK]
        layers = allocate_kv_layers(checkpoint.config, mesh, blocks, BLOCK_SIZE, precision.dtype, device)
        positions = torch.arange(len(chunk))
        batch = ForwardBatch(
            token_ids_T=torch.tensor(chunk),
            positions_T=positions,
            slots_T=positions,
            block_tables_SB=torch.arange(blocks)[None],
            logit_rows_R=positions,
            query_starts=[0, len(chunk)],
            context_lens=[len(chunk)],
        )
        with torch.inference_mode():
            parts.append(model.logits(model(batch, layers)[:-1]).log_softmax(-1))
    return torch.cat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a precision costs in accuracy.")
    parser.add_argument("model", type=Path, help="a .gguf file or a folder")
    parser.add_argument("texts", type=Path, nargs="+", help="files of plain text")
    parser.add_argument("--tokens", type=int, default=2000)
    options = parser.parse_args()
    tokenizer = Tokenizer.open(options.model)
    text = "\n".join(path.read_text() for path in options.texts)
    token_ids = list(islice(tokenizer.encode(text, add_bos=False, parse_special=False), options.tokens))
    print(f"{'precision':<18}{'logprob error':>14}{'same top token':>16}{'mean NLL':>10}   ({len(token_ids)} tokens)")
    for row in measure(open_checkpoint(options.model), token_ids):
        print(f"{row.name:<18}{row.logprob_error:>14.4f}{row.top1_agreement:>15.1%}{row.mean_nll:>11.4f}")


if __name__ == "__main__":
    main()
