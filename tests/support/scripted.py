"""A 'model' that says what a test has written down: the answer number `seed` of a file beside its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import httpx

from cluster.gateway.service import GatewaySettings
from cluster.gateway.settings import TextSettings
from replicas.config import EngineConfig
from replicas.engine import Engine, ServedModel
from replicas.text.chat import ChatRenderer
from replicas.text.tokenizer import Tokenizer
from tests.support.builders import Parrot, ParrotExecutor
from tests.support.dialects import DIALECTS, write_dialect
from tests.support.local_gateway import LocalGateway, local_gateway
from tests.support.sse import Streamed, read_stream

BUILDER = "tests.support.scripted:scripted"
MAX_MODEL_LEN = 8192
END = 2  # <|im_end|> in the vocabularies of tests.support.dialects


class Script:
    """The answers of the model in `folder`, each a list of texts, one for each choice."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "script.jsonl"
        self._tokenizer = Tokenizer.open(folder)
        self._answers: list[list[list[int]]] = []
        self._lock = Lock()

    def add(self, *texts: str) -> int:
        """The seed that makes the model say these texts, and then end."""
        answer = [self._tokenizer.encode(text, add_bos=False, parse_special=True) for text in texts]
        with self._lock, self._path.open("a") as script:
            script.write(json.dumps(answer) + "\n")
            self._answers.append(answer)
            return len(self._answers) - 1

    def tokens(self, seed: int) -> Sequence[int]:
        return self._answers[seed][0]


class ScriptedExecutor(ParrotExecutor):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "script.jsonl"
        self._answers: list[list[list[int]]] = []

    def _advance(self, parrot: Parrot, num_tokens: int) -> int | None:
        parrot.num_computed += num_tokens
        if parrot.num_computed < len(parrot.token_ids):
            return None
        seed = parrot.sampling.seed
        if seed >= len(self._answers):
            self._answers += map(json.loads, self._path.read_text().splitlines()[len(self._answers) :])
        choices = self._answers[seed]
        answer = [*choices[parrot.sampling.choice % len(choices)], END]
        place = len(parrot.token_ids) - parrot.num_prompt
        parrot.token_ids.append(answer[min(place, len(answer) - 1)])
        return parrot.token_ids[-1]


def scripted(path: str, config: EngineConfig, on_stage: Callable[[str, float], None]) -> Engine:
    model = ServedModel("scripted", 4096, MAX_MODEL_LEN, (END,), 16 * MAX_MODEL_LEN // config.block_size)
    return Engine(config, model, ScriptedExecutor(Path(path)))


@dataclass(frozen=True)
class ScriptedGateway:
    """A gateway that serves each of the dialects as a model of that name, all by one engine."""

    gateway: LocalGateway
    script: Script

    def ask(self, client: httpx.Client, model: str, *texts: str, **fields: Any) -> tuple[dict[str, Any], Streamed]:
        """A chat in which the model answers with `texts`, one for each choice: whole, and as it is streamed."""
        body = self.body(model, *texts, **fields)
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        return response.json(), read_stream(client, "/v1/chat/completions", body)

    def body(self, model: str, *texts: str, **fields: Any) -> dict[str, Any]:
        seed = self.script.add(*texts)
        messages = [{"role": "user", "content": "Go on."}]
        return {"model": model, "messages": messages, "seed": seed, "n": len(texts), **fields}


@contextmanager
def scripted_gateway(folder: Path) -> Iterator[ScriptedGateway]:
    folders = {name: write_dialect(folder / name, template) for name, template in DIALECTS.items()}
    main = folders["json"]
    script = Script(main)
    config = EngineConfig(max_batched_tokens=2048, max_running=32)
    settings = GatewaySettings(text={"json": TextSettings(takes_templates=True)})
    with local_gateway(main, config, BUILDER, "json", settings) as gateway:
        add_dialects(gateway, folders)
        yield ScriptedGateway(gateway, script)


def add_dialects(gateway: LocalGateway, folders: Mapping[str, Path]) -> None:
    """Serve the engine's model in the other dialects, too, each under its name."""
    models = gateway.service.models
    for name, path in folders.items():
        if name != "json":
            renderer = ChatRenderer(tokenizer := Tokenizer.open(path))
            models[name] = replace(
                models["json"], id=name, tokenizer=tokenizer, renderer=renderer, takes_templates=False
            )


def joined_message(streamed: Streamed, index: int = 0) -> dict[str, Any]:
    """The message that the deltas of one choice add up to, checked as clients check it."""
    message: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for event in streamed.events:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    for call in value:
                        _take_call(calls, call)
                else:
                    message[key] = message.get(key, "") + value
    if calls:
        message["tool_calls"] = calls
    return message


def _take_call(calls: list[dict[str, Any]], call: dict[str, Any]) -> None:
    if call["index"] == len(calls):
        assert call.keys() == {"index", "id", "type", "function"}
        assert call["function"].keys() == {"name", "arguments"}
        calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
        return
    assert call["index"] == len(calls) - 1
    assert call.keys() == {"index", "function"}
    assert call["function"].keys() == {"arguments"}
    calls[-1]["function"]["arguments"] += call["function"]["arguments"]


def alike(whole: dict[str, Any], streamed: dict[str, Any]) -> bool:
    """Whether a message is the same whole and streamed, but for the ids of its calls and for a null content."""
    return _bare(whole) == _bare(streamed)


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    calls = [call | {"id": ""} for call in message.get("tool_calls", ())]
    return message | {"content": message.get("content") or "", "tool_calls": calls}
