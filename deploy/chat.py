"""A conversation in the terminal with a served model, over the same HTTP interface that everybody uses."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console

from deploy.errors import UserError

_TIMEOUT = httpx.Timeout(10.0, read=None)
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer"


@dataclass(slots=True)
class Answer:
    """An answer as it arrives, with the times that matter to whoever waits for it."""

    sent_at: float
    first_at: float | None = None
    last_at: float = 0.0
    tokens: int = 0
    parts: list[str] = field(default_factory=list)

    def add(self, chunk: dict[str, Any], now: float) -> str:
        """Take one chunk of the stream; returns its text."""
        text = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        if text:
            self.first_at = self.first_at or now
            self.last_at = now
            self.tokens += 1  # an estimate, until the usage says how many there were
            self.parts.append(text)
        if usage := chunk.get("usage"):
            self.tokens = usage["completion_tokens"]
        return text

    def summary(self) -> str:
        if self.first_at is None:
            return "no text"
        line = f"TTFT {self.first_at - self.sent_at:.2f} s"
        if self.tokens > 1 and self.last_at > self.first_at:
            line += f" · {(self.tokens - 1) / (self.last_at - self.first_at):.1f} tokens/s"
        return f"{line} · {self.tokens} token{'s' if self.tokens != 1 else ''}"


def chat(url: str, model: str | None, temperature: float, key: str | None) -> None:
    """Read lines, stream the answers, until the input ends."""
    address = url.rstrip("/").removesuffix("/v1") + "/v1"
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=address, timeout=_TIMEOUT, headers=headers) as client:
        settings = {"model": model or _first_model(client), "temperature": temperature}
        console.print(f"{settings['model']} at {address}\n{_HELP}", style="dim")
        messages: list[dict[str, str]] = []
        for line in _lines(console):
            if line == "/reset":
                messages.clear()
                console.print("forgotten", style="dim")
            elif re.fullmatch(r"/\w*", line):
                console.print(_HELP, style="dim")
            else:
                _take_turn(client, settings, messages, line, console)


def _take_turn(
    client: httpx.Client, settings: dict[str, Any], messages: list[dict[str, str]], line: str, console: Console
) -> None:
    """Send the conversation with `line` at its end, and print and keep the answer. A failure leaves it as it was."""
    question = {"role": "user", "content": line}
    answer = Answer(sent_at=time.perf_counter())
    body = settings | {"messages": [*messages, question], "stream": True, "stream_options": {"include_usage": True}}
    try:
        with closing(_stream(client, body)) as chunks:
            for chunk in chunks:
                console.file.write(_CONTROL_CHARACTERS.sub("", answer.add(chunk, time.perf_counter())))
                console.file.flush()
        note = answer.summary()
    except KeyboardInterrupt:
        note = f"stopped · {answer.summary()}"
    except UserError as error:
        console.print("\n" * bool(answer.parts) + f"error: {error}", style="red")
        return
    console.print(f"\n{note}", style="dim")
    messages += [question, {"role": "assistant", "content": "".join(answer.parts)}]


def _lines(console: Console) -> Iterator[str]:
    """What the user types, without empty lines; ends at /quit and at the end of the input."""
    prompt = ""
    if sys.stdin.isatty():
        import readline  # noqa: F401  gives input() a history and line editing

        prompt = "> "
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            console.print(f"\n{_HELP}", style="dim")
            continue
        if line == "/quit":
            return
        if line:
            yield line


def _first_model(client: httpx.Client) -> str:
    with _told_plainly(client):
        response = client.get("/models")
        _raise_for_status(response)
        served = [str(model["id"]) for model in response.json()["data"]]
    if not served:
        raise UserError(f"the server at {_address(client)} serves no model")
    return served[0]


def _stream(client: httpx.Client, body: dict[str, Any]) -> Generator[dict[str, Any]]:
    """The chunks of a streamed answer. Leaving the iteration closes the connection, which ends the request."""
    with _told_plainly(client), client.stream("POST", "/chat/completions", json=body) as response:
        if response.is_error:
            response.read()
        _raise_for_status(response)
        for data in _event_data(response.iter_text()):
            if data == "[DONE]":
                return
            chunk = json.loads(data)
            if "error" in chunk:
                raise UserError(chunk["error"]["message"])
            yield chunk
    raise UserError("the answer ended before it was complete")


def _event_data(texts: Iterator[str]) -> Iterator[str]:
    """The data of server-sent events. Only a line feed ends a line here: a text may hold other separators."""
    rest = ""
    for text in texts:
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            if line.startswith("data:"):
                yield line.removeprefix("data:").strip()


@contextmanager
def _told_plainly(client: httpx.Client) -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError as error:
        raise UserError(f"no server answers at {_address(client)}; start one with: mobula serve") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UserError(f"the connection to {_address(client)} failed: {error or type(error).__name__}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"what answers at {_address(client)} is not an OpenAI-compatible server") from error


def _address(client: httpx.Client) -> str:
    return str(client.base_url).rstrip("/")


def _raise_for_status(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:200]
    raise UserError(f"the server refused with status {response.status_code}: {message}")
