"""Reading what the server sends: events of a stream, the whole they must add up to, and errors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Streamed:
    """A stream, read to its end. `texts`, `reasons` and `roles` are by choice index."""

    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    roles: dict[int, int] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


def read_stream(client: httpx.Client, path: str, body: dict[str, Any]) -> Streamed:
    """Post with stream: true."""
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return parse_stream(b"".join(response.iter_raw()))


def parse_stream(raw: bytes) -> Streamed:
    """Checks on the way what holds for every stream."""
    streamed = Streamed()
    for block in raw.split(b"\n\n")[:-1]:
        assert block.startswith(b"data: ")
        assert not streamed.done, "something follows [DONE]"
        data = block.removeprefix(b"data: ").decode("utf-8")
        if data == "[DONE]":
            streamed.done = True
            continue
        take_event(streamed, json.loads(data))
    assert raw.endswith(b"\n\n")
    return streamed


def take_event(streamed: Streamed, event: dict[str, Any]) -> None:
    streamed.events.append(event)
    if "error" in event:
        streamed.error = event["error"]
        return
    if event.get("usage") is not None:
        assert event["choices"] == []
        streamed.usage = event["usage"]
    for choice in event["choices"]:
        index = choice["index"]
        assert index not in streamed.reasons, "a choice goes on after its finish_reason"
        delta = choice.get("delta", {})
        text = choice["text"] if "text" in choice else delta.get("content") or ""
        streamed.texts[index] = streamed.texts.get(index, "") + text
        streamed.roles[index] = streamed.roles.get(index, 0) + ("role" in delta)
        if choice["finish_reason"] is not None:
            streamed.reasons[index] = choice["finish_reason"]


def complete(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"model": "test"} | body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response, status: int = 400, param: str | None = None, words: str = "") -> str:
    """Check what holds for every error object, and return its message."""
    assert response.status_code == status, response.text
    assert len(response.content) < 10_000
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert not any(inside in error["message"] for inside in ("Traceback", ".py", "site-packages", "0x"))
    assert words in error["message"]
    if param is not None:
        assert error["param"] == param
    return error["message"]


def fixed_answer(client: httpx.Client) -> str:
    """The text of one fixed greedy request."""
    body = {"prompt": "Is all well? Yes, all is well.", "max_tokens": 12, "temperature": 0}
    return complete(client, body)["choices"][0]["text"]
