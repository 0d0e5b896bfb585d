"""Log probabilities are float32 log_softmax of the logits that the model gave, whatever becomes of these afterwards."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel.layers import Placement, VocabParallelEmbedding
from parallel.mesh import Mesh
from replicas.sampling import logprobs
from replicas.sampling.logprobs import likeliest, score
from replicas.sampling.params import MAX_LOGPROBS, SamplingParams
from replicas.sampling.sharded import sample_sharded
from replicas.sampling.state import SamplingState
from tests.support.checkpoints import fill

VOCAB, HIDDEN = 512, 8


def head(vocab: int = VOCAB) -> VocabParallelEmbedding:
    head = VocabParallelEmbedding("head", vocab, HIDDEN, Placement(Mesh(), torch.float32, torch.device("cpu")))
    fill(head.weight_slots(), {"head.weight": torch.randn(vocab, HIDDEN, generator=torch.Generator().manual_seed(1))})
    return head


def hidden(rows: int) -> torch.Tensor:
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(2))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, MAX_LOGPROBS), st.sampled_from([7 * 256, 100 * 256, 300, 21 * 256]))
def test_the_likeliest_are_torchs(seed, count, vocab):
    x = torch.randn(5, vocab, generator=torch.Generator().manual_seed(seed))
    values, places = likeliest(x, count)
    expected = torch.topk(x, count)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)


def test_equal_numbers_are_all_found():
    x = torch.zeros(2, 30 * 256)
    x[1, 700:] = -torch.inf
    values, places = likeliest(x, 20)
    assert torch.equal(values, torch.zeros(2, 20))
    assert all(len(set(row)) == 20 for row in places.tolist())
    assert torch.equal(x.gather(1, places), values)


def test_they_are_of_the_raw_logits_and_only_where_asked_for():
    shaped = {
        "repetition_penalty": 2.0,
        "logit_bias": ((5, 100.0),),
        "allowed_token_ids": (5, 6, 7),
        "temperature": 0.3,
    }
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, top_k=3, seed=1, logprobs=0),
        SamplingParams(**shaped, logprobs=4),
        SamplingParams(**shaped),
        SamplingParams(temperature=0.0, logprobs=20),
    ]
    rows = [SamplingState(some, [6], 1, ()).next_row([6]) for some in params]
    drawn = sample_sharded(head(), hidden(5), rows)
    expected_RV = head().logits(hidden(5)).log_softmax(dim=-1)
    assert sorted(drawn.logprobs) == [1, 2, 4]
    assert drawn.token_ids[2] == drawn.token_ids[3] == 5
    for row, entry in drawn.logprobs.items():
        count = params[row].logprobs
        top = expected_RV[row].topk(count)
        assert entry.logprob == expected_RV[row, drawn.token_ids[row]].item()
        assert entry.top == tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    assert drawn.logprobs[4].top[0] == (drawn.token_ids[4], drawn.logprobs[4].logprob)


@pytest.mark.parametrize("piece_rows", [1, 3, 100])
def test_a_prompt_is_scored_in_pieces_of_bounded_size(monkeypatch, piece_rows):
    monkeypatch.setattr(logprobs, "PIECE_LOGITS", piece_rows * VOCAB)
    some, sizes = head(), []
    original = some.local_logits
    monkeypatch.setattr(some, "local_logits", lambda x: sizes.append(len(x)) or original(x))
    token_ids, counts = list(range(40, 50)), [0, 2] * 5
    entries = score(some, hidden(10), token_ids, counts)
    assert max(sizes) <= piece_rows
    expected_RV = head().logits(hidden(10)).log_softmax(dim=-1)
    for row, (entry, token_id, count) in enumerate(zip(entries, token_ids, counts, strict=True)):
        assert entry.logprob == pytest.approx(expected_RV[row, token_id].item(), abs=1e-6)
        assert [token for token, _ in entry.top] == expected_RV[row].topk(count).indices.tolist()


def test_a_vocabulary_smaller_than_what_is_asked_for_is_told_whole():
    row = SamplingState(SamplingParams(logprobs=20), [1], 1, ()).next_row([1])
    entry = sample_sharded(head(6), hidden(1), [row]).logprobs[0]
    assert sorted(token for token, _ in entry.top) == list(range(6))
