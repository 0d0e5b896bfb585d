"""The tool questions of the Berkeley Function Calling Leaderboard end to end: rendered, answered with the reference
calls in each dialect by an engine that says what it is told to, and read again by the client, streamed and whole.

A sample runs with all tests. MOBULA_BFCL=FOLDER pytest -m slow -s tests/cluster/gateway/test_bfcl.py runs every
question of a folder of the leaderboard's data.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from replicas.text.tools.formats import TOOL_FORMATS
from tests.support.bfcl import Question, everything, sample
from tests.support.dialects import TEMPLATES
from tests.support.scripted import joined_message
from tests.support.sse import read_stream

CHAT = "/v1/chat/completions"
FOLDER = os.environ.get("MOBULA_BFCL")


def in_json(name, calls):
    return TOOL_FORMATS[name].write([(called, json.dumps(given, ensure_ascii=False)) for called, given in calls])


def in_python(calls):
    written = (f"{called}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for called, given in calls)
    return f"[{', '.join(written)}]"


WRITERS = [(name, name, partial(in_json, name)) for name in TEMPLATES] + [("pythonic", "python", in_python)]


def answered(scripted, client, question: Question, model, write) -> tuple[bool, bool]:
    """Whether the reference calls survive, whole and streamed."""
    body = scripted.body(model, write(question.calls), messages=question.messages, tools=question.tools)
    response = client.post(CHAT, json=body)
    assert response.status_code == 200, (question.id, response.text)
    (choice,) = response.json()["choices"]
    streamed = read_stream(client, CHAT, body)
    return (
        survive(question, choice["message"], choice["finish_reason"]),
        survive(question, joined_message(streamed), streamed.reasons[0]),
    )


def survive(question: Question, message, reason) -> bool:
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls", ())
    ]
    return calls == question.calls and not message.get("content") and reason == "tool_calls"


@pytest.mark.parametrize(("model", "name", "write"), WRITERS, ids=[name for _, name, _ in WRITERS])
def test_the_reference_calls_of_a_sample_survive(scripted, chats, model, name, write):
    questions = sample()[::3]
    with ThreadPoolExecutor(8) as threads:
        outcomes = threads.map(lambda question: answered(scripted, chats, question, model, write), questions)
        assert dict(zip((q.id for q in questions), outcomes, strict=True)) == {q.id: (True, True) for q in questions}


@pytest.mark.slow
@pytest.mark.skipif(FOLDER is None, reason="MOBULA_BFCL does not name a folder of the leaderboard's data")
@pytest.mark.parametrize(("model", "name", "write"), WRITERS, ids=[name for _, name, _ in WRITERS])
def test_all_reference_calls_survive(scripted, chats, model, name, write):
    questions = list(everything(Path(FOLDER or "")))
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda question: answered(scripted, chats, question, model, write), questions))
    counts: Counter[str] = Counter()
    for question, (whole, streamed) in zip(questions, outcomes, strict=True):
        split = question.id.rpartition("_")[0]
        counts.update({f"{split} whole": whole, f"{split} streamed": streamed, f"{split} of": 1})
    print(f"\n{name}: {dict(counts)}")
    assert outcomes == [(True, True)] * len(questions)
