"""Two real ranks, each with half of the vocabulary, draw what one rank draws from the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from parallel.layers import Placement, VocabParallelEmbedding
from parallel.mesh import Mesh
from replicas.sampling import sharded
from replicas.sampling.params import SamplingParams
from replicas.sampling.rows import SampleRow
from replicas.sampling.sampler import sample
from replicas.sampling.sharded import PAIR_BYTES, sample_sharded
from replicas.sampling.state import SamplingState
from tests.support.checkpoints import fill

VOCAB_SIZE, HIDDEN_SIZE, RANKS = 101, 8, 2
GREEDY = SamplingParams(temperature=0.0)


def rows() -> list[SampleRow]:
    randoms = [
        SamplingParams(temperature=0.9, seed=3),
        SamplingParams(temperature=0.7, top_k=5, seed=4),
        SamplingParams(temperature=1.3, top_p=0.6, seed=5),
        SamplingParams(temperature=1.0, min_p=0.2, seed=6),
    ]
    greedy = [SampleRow(GREEDY, position, banned) for position, banned in enumerate([(), (3, 60), (0, 100)])]
    return [row for pair in zip(greedy, [SampleRow(p, 7) for p in randoms], strict=False) for row in pair]


def weights(case: str) -> torch.Tensor:
    """`ties`: every logit occurs in both halves of the vocabulary and thrice in each."""
    weight_VH = torch.randn(VOCAB_SIZE, HIDDEN_SIZE, generator=torch.Generator().manual_seed(1))
    return weight_VH if case == "random" else weight_VH[torch.arange(VOCAB_SIZE) % 17]


def check_rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    mesh = Mesh(tensor=RANKS, rank=rank, tensor_group=dist.group.WORLD)
    hidden_RH = torch.randn(len(rows()), HIDDEN_SIZE, generator=torch.Generator().manual_seed(2))
    for case in ("random", "ties"):
        head = VocabParallelEmbedding("head", VOCAB_SIZE, HIDDEN_SIZE, Placement(mesh, torch.float32, hidden_RH.device))
        fill(head.weight_slots(), {"head.weight": weights(case)})
        expected = sample(hidden_RH @ weights(case).T, rows())
        assert sample_sharded(head, hidden_RH, rows()).token_ids == expected.tolist(), case
        check_features(head, weights(case))
    check_bytes(head, hidden_RH)
    dist.destroy_process_group()


FEATURES = [
    SamplingParams(temperature=0.0, repetition_penalty=1.5, logprobs=3),
    GREEDY,
    SamplingParams(temperature=0.0, logit_bias=((60, 50.0), (3, 40.0)), bad_words=((60,),)),
    SamplingParams(temperature=0.0, allowed_token_ids=(0, 70, 100), min_tokens=1, stop_token_ids=(0,), logprobs=0),
    SamplingParams(presence_penalty=2.0, frequency_penalty=-1.0, seed=3),
    SamplingParams(temperature=0.0, bad_words=tuple((token_id,) for token_id in range(51))),
    SamplingParams(temperature=0.0, bad_words=tuple((token_id,) for token_id in range(VOCAB_SIZE))),
    SamplingParams(temperature=0.0, logprobs=20),
]


def check_features(head: VocabParallelEmbedding, weight_VH: torch.Tensor) -> None:
    """Beside rows that need no more than a pair. One bans all that one rank has, one bans everything, in vain."""
    hidden_RH = torch.randn(len(FEATURES), HIDDEN_SIZE, generator=torch.Generator().manual_seed(3))
    seen = [5, 60, 60]
    rows = [SamplingState(params, seen, 1, ()).next_row(seen) for params in FEATURES]
    drawn = sample_sharded(head, hidden_RH, rows)
    logits_RV = hidden_RH @ weight_VH.T
    logprobs_RV = logits_RV.log_softmax(dim=-1)
    assert drawn.token_ids == sample(logits_RV, rows).tolist()
    assert {row: len(entry.top) for row, entry in drawn.logprobs.items()} == {0: 3, 3: 0, 7: 20}
    for row, entry in drawn.logprobs.items():
        assert entry.logprob == pytest.approx(logprobs_RV[row, drawn.token_ids[row]].item(), abs=1e-5)
        assert [value for _, value in entry.top] == pytest.approx(
            logprobs_RV[row].topk(len(entry.top)).values.tolist(), abs=1e-5
        )


def check_bytes(head: VocabParallelEmbedding, hidden_RH: torch.Tensor) -> None:
    """Greedy rows cost a pair each, and nothing else is exchanged."""
    sent = []
    original = sharded.all_gather
    sharded.all_gather = lambda x, mesh: sent.append(x.nbytes) or original(x, mesh)
    sample_sharded(head, hidden_RH, [SampleRow(GREEDY, 0)] * len(hidden_RH))
    assert sent == [PAIR_BYTES * len(hidden_RH)]


@pytest.mark.slow
def test_two_ranks_draw_what_one_does(tmp_path: Path) -> None:
    mp.spawn(check_rank, args=(str(tmp_path / "store"),), nprocs=RANKS)
