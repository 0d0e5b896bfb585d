"""From messages to prompt ids, through the model's own chat template.

Templates are rendered by transformers. That import takes about 0.6 s but no torch; nothing else in this package needs
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from replicas.text.conversation import Message, template_messages
from replicas.text.dialect import Dialect, find_dialect
from replicas.text.guard import Guard
from replicas.text.reasoning import ThinkMarks
from replicas.text.tokenizer import Tokenizer
from replicas.text.tools.formats import TOOL_FORMATS
from replicas.text.tools.prompted import describe_tools, spell_out_calls

_ANSWER_FIELDS = ("content", "reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation is rendered. With `continues` its last message is not ended, so that the model goes on in it.
    `variables` are given to the template, which is the model's own unless `template` is another."""

    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continues: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """`thinking` says what the answer begins with: with the rest of reasoning that the prompt has opened, perhaps with
    reasoning, or with none."""

    token_ids: list[int]
    thinking: Literal["open", "possible", "none"]


class ChatRenderer:
    """Renders conversations of one model. Control tokens come from the template alone, never from a string in the
    messages or tools; BOS stands at the beginning once if the model wants it, whether or not the template writes it.
    """

    def __init__(self, tokenizer: Tokenizer, dialect: Dialect | None = None) -> None:
        self.dialect = dialect or find_dialect(tokenizer.chat_template, tokenizer.control_tokens)
        self._tokenizer = tokenizer
        self._guard = Guard(tokenizer.control_tokens)

    def dialect_of(self, template: str | None) -> Dialect:
        """The model's, or what it would be with another template."""
        return self.dialect if template is None else find_dialect(template, self._tokenizer.control_tokens)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        limit: int | None = None,
    ) -> list[int]:
        """The token ids of `prompt`."""
        return self.prompt(messages, ChatOptions(tools, add_generation_prompt), limit).token_ids

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions, limit: int | None = None
    ) -> ChatPrompt:
        """Raises ValueError for messages that the template or a text model cannot take, and TooManyTokens as
        `Tokenizer.check_length` does."""
        tokenizer, guard = self._tokenizer, self._guard
        template = options.template or tokenizer.chat_template
        if template is None:
            raise ValueError("this model has no chat template; send the whole prompt to /v1/completions instead")
        dialect = self.dialect_of(options.template)
        try:
            rendered = self._render(template, dialect, messages, options)
        except RecursionError:
            raise ValueError("messages or tools are nested too deeply") from None
        tokenizer.check_length(guard.unmark(rendered), limit)
        segments = [
            segment if isinstance(segment, int) else guard.unmark(segment)
            for segment in tokenizer.control_tokens.split(rendered)
        ]
        ids = tokenizer.encode_segments(segments)
        return ChatPrompt(
            token_ids=tokenizer.with_bos(ids) if tokenizer.add_bos else ids,
            thinking=_thinking(dialect.think_marks, rendered, messages if options.continues else ()),
        )

    def _render(
        self, template: str, dialect: Dialect, messages: Sequence[Mapping[str, Any]], options: ChatOptions
    ) -> str:
        guard = self._guard
        dialect.check_variables(options.variables)
        conversation = template_messages(messages, dialect.tool_format.fit_id if dialect.tool_format else str)
        if dialect.tool_format is not None and not dialect.knows_calls:
            conversation = spell_out_calls(conversation, dialect.tool_format)
        if options.tools and not dialect.knows_tools:
            conversation = describe_tools(conversation, options.tools, dialect.tool_format or TOOL_FORMATS["json"])
        knows_developer = "developer" in template
        return self._fill_in(
            template,
            [self._guarded(message, knows_developer) for message in conversation],
            guard.mark(list(options.tools)) if options.tools else None,
            options,
        )

    def _guarded(self, message: Message, knows_developer: bool) -> Message:
        """The message with marks, and in the one role for instructions that every template knows."""
        guarded: Message = self._guard.mark(message)
        if message.get("role") == "developer" and not knows_developer:
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

    def _fill_in(self, template: str, messages: list[Message], tools: list[Any] | None, options: ChatOptions) -> str:
        variables = {**self._tokenizer.special_tokens_map, **self._guard.mark(dict(options.variables))}
        try:
            rendered: Any = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=template,
                add_generation_prompt=options.add_generation_prompt,
                continue_final_message=options.continues,
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


def _thinking(
    marks: ThinkMarks | None, rendered: str, continued: Sequence[Mapping[str, Any]]
) -> Literal["open", "possible", "none"]:
    """`continued` are the messages, if the last of them goes on."""
    if marks is None:
        return "none"
    if continued:
        content = continued[-1].get("content")
        return "open" if isinstance(content, str) and marks.is_open_in(content) else "none"
    end = rendered.rstrip()
    if end.endswith(marks.closing):
        return "none"
    return "open" if marks.always or end.endswith(marks.opening) else "possible"
