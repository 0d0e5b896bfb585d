"""Skipping ahead leaves what single steps would, to the last bit of the bookkeeping."""

from __future__ import annotations

from dataclasses import asdict
from random import Random

import pytest

from deploy.simulate.cluster import Cluster
from deploy.simulate.engine import SimulatedEngine
from deploy.simulate.synthetic import Amount, chats
from replicas.config import EngineConfig
from replicas.messages import GenerateRequest
from replicas.sampling.params import SamplingParams
from tests.support.simulation import small_shape, two_choices

CONFIG = EngineConfig(block_size=16, max_batched_tokens=512, max_running=8)


def engine_with(requests):
    engine = SimulatedEngine(CONFIG, 200)
    for name, (prompt, answer) in enumerate(requests):
        sampling = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
        engine.add(GenerateRequest(str(name), (name + 1,) * prompt, sampling))
    return engine


def state(engine):
    pace, load = engine._pace, engine.load()
    sequences = [(s.request.request_id, s.token_ids, s.num_computed, s.block_ids) for s in engine._scheduler.running]
    averages = (pace.step_seconds, pace.decode_step_seconds, pace.decode_rate, load.step_seconds, load.decode_rate)
    return sequences, engine.clock.now, engine.cached_keys(), load.steps_total, load.generation_tokens_total, averages


def test_an_engine_that_skips_is_where_one_is_that_steps():
    requests = [(100, 40), (37, 25), (200, 90), (15, 60)]
    skips, steps = engine_with(requests), engine_with(requests)
    skipped = 0
    while skips.has_work:
        if count := skips.steady_steps():
            skips.skip(skips.run_ends(count))
            skipped += count
        else:
            count = 1
            skips.step()
        for _ in range(count):
            steps.step()
        *exact, averages = state(skips)
        *wanted, wanted_averages = state(steps)
        assert exact == wanted
        assert averages == pytest.approx(wanted_averages, rel=1e-9)
        skips.check_integrity()
    assert not steps.has_work
    assert skipped > 30


def test_a_cluster_that_skips_shows_the_same_figures(monkeypatch):
    arrivals = chats(Amount(20.0, 10.0, 16), Random(3))
    skipping = Cluster(small_shape(), two_choices, 1).run(arrivals).figures()
    monkeypatch.setattr(SimulatedEngine, "steady_steps", lambda engine: 0)
    stepping = Cluster(small_shape(), two_choices, 1).run(arrivals).figures()
    assert asdict(stepping) == pytest.approx(asdict(skipping), rel=1e-12)
