"""From messages to prompt ids, through the model's own chat template.

Templates are rendered by transformers. That import takes about 0.6 s but no torch; nothing else in this package needs
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from replicas.text.conversation import Message, template_messages
from replicas.text.guard import Guard
from replicas.text.tokenizer import Tokenizer

_ANSWER_FIELDS = ("content", "reasoning_content", "reasoning", "thinking")


class ChatRenderer:
    """Renders conversations of one model. Control tokens come from the template alone, never from a string in the
    messages or tools; BOS stands at the beginning once if the model wants it, whether or not the template writes it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._guard = Guard(tokenizer.control_tokens)
        self._knows_developer = "developer" in (tokenizer.chat_template or "")

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        limit: int | None = None,
    ) -> list[int]:
        """Raises ValueError for messages that the template or a text model cannot take, and TooManyTokens as
        `Tokenizer.check_length` does."""
        tokenizer, guard = self._tokenizer, self._guard
        if tokenizer.chat_template is None:
            raise ValueError("this model has no chat template; send the whole prompt to /v1/completions instead")
        try:
            rendered = self._render(
                tokenizer.chat_template,
                [self._guarded(message) for message in template_messages(messages)],
                guard.mark(list(tools)) if tools else None,
                add_generation_prompt,
            )
        except RecursionError:
            raise ValueError("messages or tools are nested too deeply") from None
        tokenizer.check_length(guard.unmark(rendered), limit)
        segments = [
            segment if isinstance(segment, int) else guard.unmark(segment)
            for segment in tokenizer.control_tokens.split(rendered)
        ]
        ids = tokenizer.encode_segments(segments)
        return tokenizer.with_bos(ids) if tokenizer.add_bos else ids

    def _guarded(self, message: Message) -> Message:
        """The message with marks, and in the one role for instructions that every template knows."""
        guarded: Message = self._guard.mark(message)
        if message.get("role") == "developer" and not self._knows_developer:
            guarded["role"] = "system"
        if message.get("role") == "assistant":
            guarded.update(
                {
                    field: self._guard.mark_answer(message[field])
                    for field in _ANSWER_FIELDS
                    if isinstance(message.get(field), str)
                }
            )
        return guarded

    def _render(
        self, template: str, messages: list[Message], tools: list[Any] | None, add_generation_prompt: bool
    ) -> str:
        variables: dict[str, Any] = {**self._tokenizer.special_tokens_map}
        try:
            rendered: Any = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=template,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        except RecursionError:
            raise
        except Exception as error:  # a template is foreign code: it may fail in any way
            message = self._guard.unmark(str(error))
            if type(error) is TemplateError:  # its own raise_exception(), meant for the caller
                raise ValueError(message) from error
            raise ValueError(f"the chat template cannot render these messages: {message}") from error
        return str(rendered[0][0])
