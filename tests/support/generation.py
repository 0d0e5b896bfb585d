"""Running prompts through a real engine, and asking transformers whether the answers are right."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from replicas.engine import Engine
from replicas.messages import GenerateRequest, RequestSummary
from replicas.sampling.params import SamplingParams


def generate(
    engine: Engine, prompts: Sequence[Sequence[int]], together: bool = True, **sampling: object
) -> list[RequestSummary]:
    """The summaries in the order of the prompts; integrity is checked at the end."""
    params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    finished: dict[str, RequestSummary] = {}
    for index, prompt in enumerate(prompts):
        engine.add(GenerateRequest(str(index), tuple(prompt), params))
        while engine.has_work and (not together or index == len(prompts) - 1):
            finished |= {summary.request_id: summary for summary in engine.step().finished}
    engine.check_integrity()
    load = engine.load()
    assert load.kv_blocks_free == load.kv_blocks_total
    return [finished[str(index)] for index in range(len(prompts))]


def resume(engine: Engine, prompt: Sequence[int], so_far: Sequence[int], **sampling: object) -> RequestSummary:
    """The summary of a request that another engine had brought to `so_far`."""
    params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    engine.add(GenerateRequest("resumed", (*prompt, *so_far), params, resumed=len(so_far)))
    finished: list[RequestSummary] = []
    while not finished:
        finished += engine.step().finished
    engine.check_integrity()
    return finished[0]


def tokens(summaries: Sequence[RequestSummary]) -> list[list[int]]:
    return [list(summary.token_ids) for summary in summaries]


@torch.inference_mode()
def assert_greedy(oracle: torch.nn.Module, prompt: Sequence[int], answer: Sequence[int]) -> None:
    """The oracle, shown prompt and answer, would have chosen each token of the answer: by induction its own greedy
    generation is the same. A near-tie (1e-4 in logits) is either's right to break."""
    logits_TV = oracle(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    best_T = logits_TV.amax(dim=-1)
    chosen_T = logits_TV.gather(1, torch.tensor(answer)[:, None])[:, 0]
    behind = (best_T - chosen_T).max().item()
    assert behind < 1e-4, f"a token is {behind} behind the oracle's choice"
