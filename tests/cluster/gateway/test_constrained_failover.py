"""A constraint holds across the death of an engine: its successor goes on in the middle of the sentence."""

from __future__ import annotations

import os
import re
import signal

import openai
import pytest

from cluster.codec import DEFAULT_BUILDER
from replicas.config import EngineConfig
from tests.support.checkpoints import write_tiny_with_small_vocabulary
from tests.support.local_gateway import local_gateway

PATTERN = "([a-z]{5}-){120}"


@pytest.mark.slow
def test_a_constrained_stream_goes_on_as_if_nothing_had_happened(tmp_path):
    path = write_tiny_with_small_vocabulary(tmp_path)
    config = EngineConfig(dtype="float32", kv_cache_memory=16 * 1024**2, max_running=4, max_model_len=1024)
    with local_gateway(path, config, DEFAULT_BUILDER, engines=2) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=120)
        request = {"model": "test", "prompt": "Hello", "max_tokens": 900, "seed": 3}
        constrained = {"structured_outputs": {"regex": PATTERN}}
        whole = client.completions.create(extra_body=constrained, **request).choices[0]
        text, killed = "", False
        for chunk in client.completions.create(extra_body=constrained, stream=True, **request):
            text += chunk.choices[0].text
            if not killed and len(text) > 60:
                (busy,) = [place for place in range(2) if gateway.load(place).running]
                os.kill(gateway.engines[busy].pid, signal.SIGKILL)
                killed = True
        assert killed
        assert (text, chunk.choices[0].finish_reason) == (whole.text, whole.finish_reason)
        assert re.fullmatch(PATTERN, text)
