"""One choice of a text completion as it grows: its echo, its text, its log probabilities."""

from __future__ import annotations

from typing import Any

from cluster.gateway.echo import echo
from cluster.gateway.generation import Delta, Generation
from cluster.gateway.logprobs import CompletionLogprobs, prompt_logprobs
from cluster.gateway.protocol import CompletionRequest
from cluster.gateway.requests import Job

Lists = dict[str, list[Any]]


class CompletionAnswer:
    """Takes the choice's deltas. The first brings the echo of the prompt, if there is to be one."""

    def __init__(self, job: Job[CompletionRequest], generation: Generation) -> None:
        self._body = job.body
        self._tokenizer = job.model.tokenizer
        self._generation = generation
        self._logprobs: CompletionLogprobs | None = None

    def take(self, delta: Delta) -> tuple[str, Lists | None]:
        """The text and log probabilities that are new."""
        text, lists = "", None
        if self._logprobs is None:
            text, lists = self._echo() if self._body.echo else ("", None)
            self._logprobs = CompletionLogprobs(self._tokenizer, len(text))
        if self._body.logprobs is not None:
            new = self._logprobs.portion(delta.scored)
            lists = joined([lists, new]) if lists is not None else new
        return text + delta.text, lists

    def prompt_logprobs(self) -> list[dict[str, Any] | None] | None:
        """As vLLM's field of that name asks for them."""
        wanted, generation = self._body.prompt_logprobs, self._generation
        if wanted is None:
            return None
        return prompt_logprobs(self._tokenizer, generation.request.token_ids, generation.prompt_logprobs, wanted)

    def _echo(self) -> tuple[str, Lists | None]:
        body, generation = self._body, self._generation
        prompt = body.prompts[generation.index // body.num_generations]
        is_whole_text = isinstance(prompt, str) and body.truncate_prompt_tokens is None
        own_text = str(prompt) if is_whole_text else None
        text, tokens = echo(self._tokenizer, own_text, generation.request.token_ids, generation.prompt_logprobs)
        return text, CompletionLogprobs(self._tokenizer).portion(tokens) if body.logprobs is not None else None


def joined(portions: list[Lists]) -> Lists:
    return {name: [entry for portion in portions for entry in portion[name]] for name in portions[0]}
