"""The output of a response: items that follow each other, and the events that build them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.gateway.chat_parts import ChatFinishReason
from cluster.gateway.sse import named_event
from replicas.text.parts import CallArguments, CallStart, Content, Part, Reasoning

Object = dict[str, Any]
Emit = Callable[..., None]


class EventLog:
    """Numbers the events of one stream, and keeps them until they are sent."""

    def __init__(self) -> None:
        self._number = 0
        self._events: list[bytes] = []

    def emit(self, kind: str, **fields: Any) -> None:
        name = f"response.{kind}"
        self._events.append(named_event(name, {"type": name, "sequence_number": self._number, **fields}))
        self._number += 1

    def take(self) -> bytes:
        events, self._events = b"".join(self._events), []
        return events


class OutputItems:
    """Grows by parts. `items` are all items so far; what happens to them is told to `emit`."""

    def __init__(self, response_id: str, emit: Emit) -> None:
        self.items: list[Object] = []
        self._suffix = response_id.partition("-")[2]
        self._emit = emit
        self._open: type[Part] | None = None

    def write(self, part: Part) -> None:
        match part:
            case Content(text):
                self._begin(Content, self._new_message)
                self._add_text("output_text", text)
            case Reasoning(text):
                self._begin(Reasoning, self._new_reasoning)
                self._add_text("reasoning_text", text)
            case CallStart(_, call_id, name):
                self._close("completed")
                self._open = CallStart
                self._add_item("fc", type="function_call", call_id=call_id, name=name, arguments="")
            case CallArguments(_, text):
                self.items[-1]["arguments"] += text
                self._tell("function_call_arguments.delta", delta=text)

    def close(self, reason: ChatFinishReason) -> None:
        """The end of the item that is open, which an answer that was cut leaves incomplete."""
        self._close("incomplete" if reason == "length" else "completed")

    def _begin(self, kind: type[Part], new: Callable[[], None]) -> None:
        if self._open is not kind:
            self._close("completed")
            self._open = kind
            new()

    def _new_message(self) -> None:
        self._add_item("msg", type="message", role="assistant", content=[])
        self._add_part({"type": "output_text", "text": "", "annotations": [], "logprobs": []})

    def _new_reasoning(self) -> None:
        self._add_item("rs", type="reasoning", summary=[], content=[])
        self._add_part({"type": "reasoning_text", "text": ""})

    def _add_item(self, prefix: str, **fields: Any) -> None:
        item = {"id": f"{prefix}_{self._suffix}_{len(self.items)}", "status": "in_progress", **fields}
        self.items.append(item)
        self._emit("output_item.added", output_index=len(self.items) - 1, item=item)

    def _add_part(self, part: Object) -> None:
        self._tell("content_part.added", content_index=0, part=part)
        self.items[-1]["content"].append(part)

    def _add_text(self, kind: str, text: str) -> None:
        self.items[-1]["content"][0]["text"] += text
        self._tell_of_text(f"{kind}.delta", delta=text)

    def _close(self, status: str) -> None:
        if self._open is None:
            return
        self._open, item = None, self.items[-1]
        item["status"] = status
        if item["type"] == "function_call":
            self._tell("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        else:
            part = item["content"][0]
            self._tell_of_text(f"{part['type']}.done", text=part["text"])
            self._tell("content_part.done", content_index=0, part=part)
        self._emit("output_item.done", output_index=len(self.items) - 1, item=item)

    def _tell_of_text(self, kind: str, **fields: Any) -> None:
        logprobs: Object = {"logprobs": []} if kind.startswith("output_text") else {}
        self._tell(kind, content_index=0, **fields, **logprobs)

    def _tell(self, kind: str, **fields: Any) -> None:
        self._emit(kind, item_id=self.items[-1]["id"], output_index=len(self.items) - 1, **fields)
