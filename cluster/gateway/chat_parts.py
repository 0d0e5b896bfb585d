"""A chat's answer as it comes, in parts: reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.generation import merge
from cluster.gateway.requests import Job
from cluster.gateway.text_stream import ScoredToken
from replicas.messages import FinishReason
from replicas.text.parts import Part, Reasoning, joined

ChatFinishReason = FinishReason | Literal["tool_calls"]


@dataclass(frozen=True, slots=True)
class Portion:
    """New parts of choice `index`; `finish_reason` comes with the last ones. `scored` as in `Delta`: parsers hold text
    back, so its tokens may be those of later parts."""

    index: int
    parts: list[Part]
    finish_reason: ChatFinishReason | None
    scored: tuple[ScoredToken, ...] = ()


async def portions(job: Job[ChatRequest]) -> AsyncGenerator[Portion]:
    """At least one of every choice, which ends by "tool_calls" only if all its calls are whole. Raises ApiError."""
    parsers = [job.steering.new_parser() for _ in job.generations]
    async with aclosing(merge(job.generations)) as deltas:
        async for delta in deltas:
            parser = parsers[delta.index]
            parts, reason = parser.push(delta.text), delta.finish_reason
            if reason is not None:
                parts = joined([*parts, *parser.finish()])
            if not job.body.include_reasoning:
                parts = [part for part in parts if not isinstance(part, Reasoning)]
            calls = reason == "stop" and parser.has_whole_calls
            yield Portion(delta.index, parts, "tool_calls" if calls else reason, delta.scored)
