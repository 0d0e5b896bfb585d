"""From a chat request to its prompt, the constraint on its answer and the parser of it, in the model's own dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cluster.gateway.chat_protocol import ChatRequest, Message, NamedTool
from cluster.gateway.constraint import check
from cluster.gateway.errors import bad_request
from cluster.gateway.requests import Steering
from cluster.gateway.service import ModelService
from replicas.sampling.grammar_spec import Grammar
from replicas.text.chat import ChatOptions, ChatPrompt
from replicas.text.constrained_answer import allow_thinking, finish_thinking
from replicas.text.dialect import Dialect
from replicas.text.parts import ContentParser, MessageParser
from replicas.text.reasoning import ReasoningParser, ThinkMarks
from replicas.text.stop_scope import StopScope
from replicas.text.tools.forced import forced_calls, strict_calls
from replicas.text.tools.formats import ToolFormat


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """`prompt` is an error where the conversation cannot be rendered."""

    prompt: ChatPrompt | ValueError
    steering: Steering

    def token_ids(self, _model: ModelService, _limit: int | None) -> list[int]:
        if isinstance(self.prompt, ValueError):
            raise self.prompt
        return self.prompt.token_ids


def plan_chat(model: ModelService, body: ChatRequest) -> ChatPlan:
    """Raises ApiError for fields that this model cannot serve."""
    if body.chat_template is not None and not model.takes_templates:
        raise bad_request("chat_template is not allowed by this server's configuration.", "chat_template")
    dialect = model.renderer.dialect_of(body.chat_template)
    tools = [tool.model_dump(exclude_none=True) for tool in body.offered_tools]
    if tools and dialect.tool_format is None:
        raise bad_request("tools is not supported: this server cannot read the calls that this model writes.", "tools")
    options = ChatOptions(
        tools=tools,
        add_generation_prompt=not body.continue_final_message and body.add_generation_prompt is not False,
        continues=body.continue_final_message,
        variables=_variables(dialect, body),
        template=body.chat_template,
    )
    limit = model.info.max_model_len if body.truncate_prompt_tokens is None else None
    try:
        prompt = model.renderer.prompt([_plain(message) for message in body.messages], options, limit)
    except ValueError as error:
        return ChatPlan(error, Steering())
    return ChatPlan(prompt, _steering(model, dialect, body, tools, prompt.thinking))


def _steering(
    model: ModelService, dialect: Dialect, body: ChatRequest, tools: list[dict[str, Any]], thinking: str
) -> Steering:
    marks, form = dialect.think_marks, dialect.tool_format
    new_parser: Callable[[], MessageParser] = ContentParser
    kept, grammar, place, stop_scope = dialect.think_tokens, None, None, None
    if tools:
        assert form is not None
        names = frozenset(tool["function"]["name"] for tool in tools)
        new_parser = partial(form.parser, names, form.new_id, None if body.parallel_tool_calls else 1)
        kept |= dialect.call_tokens
        grammar = _grammar(form, body, tools)
    if marks is not None:
        is_open = thinking == "open"
        new_parser = partial(_reasoning_parser, marks, is_open, new_parser)
        place = partial(_place, model, marks, thinking)
        stop_scope = partial(StopScope, marks.opening, marks.closing, is_open)
    return Steering(
        grammar=grammar,
        place=place,
        new_parser=new_parser,
        kept_special=kept,
        continues_text=body.continue_final_message,
        stop_scope=stop_scope,
    )


def _reasoning_parser(marks: ThinkMarks, is_open: bool, new_answer: Callable[[], MessageParser]) -> MessageParser:
    return ReasoningParser(marks, is_open, new_answer())


def _place(model: ModelService, marks: ThinkMarks, thinking: str, grammar: Grammar) -> Grammar:
    """The constraint on the answer alone."""
    if thinking == "none":
        return grammar
    if thinking == "possible":
        return allow_thinking(grammar, marks)
    closing = model.tokenizer.encode(marks.closing, add_bos=False, parse_special=True)
    return replace(grammar, after=tuple(closing)) if len(closing) == 1 else finish_thinking(grammar, marks)


def _grammar(form: ToolFormat, body: ChatRequest, tools: list[dict[str, Any]]) -> Grammar | None:
    """What `tool_choice` and strict tools ask for. Raises ApiError."""
    grammar = _forced(form, body, tools)
    if grammar is not None:
        check(grammar, "tools")
    return grammar


def _forced(form: ToolFormat, body: ChatRequest, tools: list[dict[str, Any]]) -> Grammar | None:
    choice, at_most_one = body.tool_choice, not body.parallel_tool_calls
    if isinstance(choice, NamedTool):
        named = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
        return forced_calls(form, named, at_most_one=True)
    if choice == "required":
        return forced_calls(form, tools, at_most_one)
    for index, tool in enumerate(tools):
        if tool["function"].get("strict"):
            field = f"tools.{index}.function.strict"
            try:
                return strict_calls(form, tools, at_most_one)
            except ValueError as error:
                raise bad_request(f"{field} can be {error}.", field) from None
    return None


def _variables(dialect: Dialect, body: ChatRequest) -> dict[str, Any]:
    """What the template is told. Raises ApiError by the name of the field that it does not know."""
    variables = dict(body.chat_template_kwargs or {})
    field = "chat_template_kwargs"
    try:
        dialect.check_variables(variables)
        if body.reasoning_effort is not None:
            field = "reasoning_effort"
            variables = dialect.effort_variables(body.reasoning_effort) | variables
        if body.thinking_token_budget is not None:
            field = "thinking_token_budget"
            variables = dialect.budget_variables(body.thinking_token_budget) | variables
    except ValueError as error:
        raise bad_request(f"{field}: {error}.", field) from None
    return variables


def _plain(message: Message) -> dict[str, Any]:
    """The message as chat templates expect it; an assistant's empty list of calls is no list."""
    plain = message.model_dump(exclude_none=True)
    if not plain.get("tool_calls"):
        plain.pop("tool_calls", None)
    return plain
