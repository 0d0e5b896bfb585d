"""`mobula chat` against a server that is made for the test."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from deploy.chat import Answer

Reply = Callable[["ChatServer", BaseHTTPRequestHandler, dict[str, Any]], None]

StartServer = Callable[..., "ChatServer"]


class ChatServer:
    """Answers every chat request with `reply`, and keeps what was asked."""

    def __init__(self, reply: Reply, models: str = '{"data": [{"id": "small"}, {"id": "large"}]}') -> None:
        self.models = models
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.closed_by_client = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(reply))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self, reply: Reply) -> type[BaseHTTPRequestHandler]:
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(200, chat.models)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                chat.requests.append(body)
                chat.keys.append(self.headers["Authorization"])
                reply(chat, self, body)

            def answer(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def event(content: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}}]}


def send(handler: BaseHTTPRequestHandler, *events: dict[str, Any] | str) -> None:
    for item in events:
        data = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
        handler.wfile.write(f"data: {data}\n\n".encode())
        handler.wfile.flush()


def start(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()


def echo(_: ChatServer, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
    """Say back the last message, one character an event."""
    start(handler)
    said = body["messages"][-1]["content"]
    send(handler, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    send(handler, *(event(character) for character in f"<{said}>"))
    send(handler, {"choices": [], "usage": {"completion_tokens": 41}}, "[DONE]")


@pytest.fixture
def serve() -> Iterator[StartServer]:
    servers: list[ChatServer] = []

    def start_server(*options: Any) -> ChatServer:
        servers.append(ChatServer(*options))
        return servers[-1]

    yield start_server
    for server in servers:
        server.close()


def command(server: ChatServer, *options: str) -> list[str]:
    return [sys.executable, "-m", "deploy.cli", "chat", "--url", server.url, *options]


def talk(server: ChatServer, *lines: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Pipe `lines` into the command."""
    text = "".join(f"{line}\n" for line in lines)
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        command(server, *options),
        input=text,
        capture_output=True,
        encoding="utf-8",
        env=environment,
        timeout=60,
        check=False,
    )


def test_answers_are_printed_with_their_times_and_the_conversation_goes_on(
    serve: StartServer,
) -> None:
    server = serve(echo)
    result = talk(server, "hello", "", "again")
    assert (result.returncode, result.stderr) == (0, "")
    assert "<hello>\nTTFT " in result.stdout
    assert "tokens/s · 41 tokens" in result.stdout
    assert "<again>\n" in result.stdout
    assert [message["content"] for message in server.requests[1]["messages"]] == ["hello", "<hello>", "again"]
    assert [message["role"] for message in server.requests[1]["messages"]] == ["user", "assistant", "user"]
    assert server.requests[0]["model"] == "small"
    assert server.requests[0]["stream"] is True


def test_model_and_temperature_can_be_chosen(serve: StartServer) -> None:
    server = serve(echo)
    talk(server, "hello", options=("--model", "large", "--temperature", "0"))
    assert (server.requests[0]["model"], server.requests[0]["temperature"]) == ("large", 0)


def test_a_key_is_sent_if_there_is_one(serve: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(echo)
    talk(server, "hi", options=("--key", "secret"))
    talk(server, "hi")
    monkeypatch.setenv("MOBULA_API_KEY", "other")
    talk(server, "hi")
    assert server.keys == ["Bearer secret", None, "Bearer other"]


def test_reset_forgets_and_quit_leaves(serve: StartServer) -> None:
    server = serve(echo)
    result = talk(server, "one", "/reset", "two", "/nonsense", "/quit", "three")
    assert [message["content"] for message in server.requests[1]["messages"]] == ["two"]
    assert len(server.requests) == 2
    assert "<three>" not in result.stdout


def test_an_address_with_or_without_its_path_is_understood(serve: StartServer) -> None:
    server = serve(echo)
    for suffix in ("/", "/v1", "/v1/"):
        url = server.url + suffix
        assert "<x>" in talk(server, "x", options=("--url", url)).stdout


def test_every_text_arrives_as_it_was_said_but_for_control_characters(serve: StartServer) -> None:
    text = "a\u2028b\x85c\u2029 🫠龜\n[bold]data: x[/bold]"

    def reply(_: ChatServer, handler: BaseHTTPRequestHandler, __: dict[str, Any]) -> None:
        start(handler)
        data = f"data: {json.dumps(event(text), ensure_ascii=False)}\n\n".encode()
        for index in range(len(data)):
            handler.wfile.write(data[index : index + 1])
            handler.wfile.flush()
        send(handler, event("\x1b[31mred\x07"), "[DONE]")

    assert f"{text.replace(chr(0x85), '')}[31mred\n" in talk(serve(reply), "x").stdout


# --- Failures: told in a sentence, and the conversation stays as it was ---


def refuse(_: ChatServer, handler: Any, __: dict[str, Any]) -> None:
    handler.answer(400, json.dumps({"error": {"message": "the prompt has 9000 tokens"}}))


def refuse_without_words(_: ChatServer, handler: Any, __: dict[str, Any]) -> None:
    handler.answer(502, "<html>bad gateway</html>")


def fail_midway(_: ChatServer, handler: BaseHTTPRequestHandler, __: dict[str, Any]) -> None:
    start(handler)
    send(handler, event("so far"), {"error": {"message": "the replica died"}})


def end_midway(_: ChatServer, handler: BaseHTTPRequestHandler, __: dict[str, Any]) -> None:
    start(handler)
    send(handler, event("so far"))


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (refuse, "error: the server refused with status 400: the prompt has 9000 tokens"),
        (refuse_without_words, "error: the server refused with status 502: <html>bad gateway</html>"),
        (fail_midway, "error: the replica died"),
        (end_midway, "error: the answer ended before it was complete"),
    ],
)
def test_a_failed_answer_is_told_and_forgotten(serve: StartServer, reply: Reply, said: str) -> None:
    server = serve(reply)
    result = talk(server, "first", "second")
    assert result.returncode == 0
    assert result.stdout.count(said) == 2
    assert [message["content"] for message in server.requests[1]["messages"]] == ["second"]


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ("<html>", "is not an OpenAI-compatible server"),
        ("[]", "is not an OpenAI-compatible server"),
        ('{"data": []}', "serves no model"),
    ],
)
def test_a_server_that_cannot_be_talked_to_is_told(serve: StartServer, models: str, said: str) -> None:
    result = talk(serve(echo, models), "x")
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


# --- In a terminal ---


def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(serve: StartServer) -> None:
    def reply(server: ChatServer, handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        start(handler)
        try:
            for number in range(3000):
                send(handler, event(f"{number} "))
                time.sleep(0.01)
        except OSError:
            server.closed_by_client.set()

    server = serve(reply)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command(server), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        read_until(ours, "> ")
        os.write(ours, b"count\n")
        read_until(ours, "5 ")
        process.send_signal(signal.SIGINT)
        read_until(ours, "stopped · TTFT")
        assert server.closed_by_client.wait(5)
        os.write(ours, b"\x04")
        assert process.wait(10) == 0
    finally:
        process.kill()
        os.close(ours)


def read_until(terminal: int, text: str) -> str:
    seen = ""
    while text not in seen:
        seen += os.read(terminal, 1024).decode(errors="replace")
    return seen


def test_the_summary_of_an_answer() -> None:
    answer = Answer(sent_at=10.0)
    assert answer.summary() == "no text"
    answer.add(event("a"), 10.25)
    assert answer.summary() == "TTFT 0.25 s · 1 token"
    answer.add(event("b"), 11.25)
    answer.add({"choices": [], "usage": {"completion_tokens": 21}}, 12.0)
    assert answer.summary() == "TTFT 0.25 s · 20.0 tokens/s · 21 tokens"
