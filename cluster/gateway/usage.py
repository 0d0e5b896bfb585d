"""What a response says it cost, in tokens that the client sent and got."""

from __future__ import annotations

from typing import Any

from cluster.gateway.generation import Generation


async def usage(generations: list[Generation]) -> dict[str, Any]:
    """OpenAI's usage object over all choices of a finished response. A prompt counts once, however many choices it
    has."""
    prompt = sum(generation.charged_prompt for generation in generations)
    output = sum(generation.text.num_tokens for generation in generations)
    cached = [await generation.cached_tokens() for generation in generations if generation.charged_prompt]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(cached)},
    }
