"""How a model speaks, as its chat template shows it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from replicas.text.chat import ChatOptions, ChatRenderer
from replicas.text.control_tokens import ControlTokens
from replicas.text.dialect import Dialect, find_dialect
from replicas.text.parser_names import ReasoningParserName, ToolParserName
from replicas.text.reasoning import REASONING_FORMATS, THINK
from replicas.text.tokenizer import Tokenizer
from replicas.text.tools.formats import TOOL_FORMATS
from tests.support.dialects import OPENED, TEMPLATES, THINKING, write_dialect

NO_TOKENS = ControlTokens({}, None)


def dialect(template: str | None, tools: ToolParserName = "auto", reasoning: ReasoningParserName = "auto") -> Dialect:
    return find_dialect(template, NO_TOKENS, tools, reasoning)


def test_every_name_stands_for_a_parser() -> None:
    assert {*get_args(ToolParserName)} == {"auto", "none", *TOOL_FORMATS}
    assert {*get_args(ReasoningParserName)} == {"auto", "none", *REASONING_FORMATS}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_format_of_tool_calls_is_seen(name: str) -> None:
    assert dialect(TEMPLATES[name]).tool_format is TOOL_FORMATS[name]


@pytest.mark.parametrize(
    "mark", ["<function=", "<arg_key>", "<｜tool▁calls▁begin｜>", "<|tool_call|>", "<|channel|>commentary"]
)
def test_a_format_that_nothing_reads_is_none(mark: str) -> None:
    template = f"{{{{ tools }}}}<tool_call>{mark}"
    assert dialect(template).tool_format is None
    assert dialect(template, tools="hermes").tool_format is TOOL_FORMATS["hermes"]


def test_a_template_that_knows_no_tools_has_them_told_in_json() -> None:
    plain = dialect("{{ messages }}")
    assert plain.tool_format is TOOL_FORMATS["json"]
    assert not plain.knows_tools
    assert dialect(None).tool_format is TOOL_FORMATS["json"]


def test_the_configuration_may_say_otherwise() -> None:
    assert dialect(TEMPLATES["hermes"], tools="none").tool_format is None
    assert dialect(TEMPLATES["hermes"], tools="llama").tool_format is TOOL_FORMATS["llama"]
    assert dialect(THINKING, reasoning="none").think_marks is None
    assert dialect("{{ messages }}", reasoning="think").think_marks is THINK


def test_variables_are_those_that_the_template_takes_from_outside() -> None:
    template = (
        "{% set x = 1 %}{% for message in messages %}{{ loop.index + x + range(3) | length }}{% endfor %}"
        "{{ bos_token }}{{ raise_exception('a') }}{% if enable_thinking is defined %}{{ colour }}{% endif %}"
    )
    assert dialect(template).variables == {"enable_thinking", "colour"}


def test_a_template_with_tags_of_its_own_may_take_any_name() -> None:
    template = "{% for message in messages %}{% generation %}{{ colour }}{% endgeneration %}{% endfor %}"
    assert "colour" in dialect(template).variables


@pytest.mark.parametrize(
    ("template", "effort", "variables"),
    [
        ("{{ reasoning_effort }}", "low", {"reasoning_effort": "low"}),
        ("{{ enable_thinking }}", "none", {"enable_thinking": False}),
        ("{{ enable_thinking }}", "high", {"enable_thinking": True}),
        ("{{ thinking }}", "none", {"thinking": False}),
    ],
)
def test_an_effort_is_told_in_the_templates_own_words(template: str, effort: str, variables: dict[str, object]) -> None:
    assert dialect(template).effort_variables(effort) == variables


def test_special_tokens_among_the_marks_are_to_be_shown(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(write_dialect(tmp_path, TEMPLATES["mistral"]))
    dialect = ChatRenderer(tokenizer).dialect
    assert dialect.think_tokens == frozenset()
    assert {tokenizer.token_bytes[index] for index in dialect.call_tokens} == {b"[TOOL_CALLS]", b"[ARGS]", b"[CALL_ID]"}


@pytest.mark.parametrize(
    ("template", "variables", "thinking"),
    [
        (TEMPLATES["json"], {}, "none"),
        (THINKING, {}, "possible"),
        (THINKING, {"enable_thinking": False}, "none"),
        (OPENED, {}, "open"),
        (OPENED, {"enable_thinking": False}, "none"),
    ],
)
def test_prompts_tell_whether_the_model_thinks(
    tmp_path: Path, template: str, variables: dict[str, object], thinking: str
) -> None:
    renderer = ChatRenderer(Tokenizer.open(write_dialect(tmp_path, template)))
    prompt = renderer.prompt([{"role": "user", "content": "<think>"}], ChatOptions(variables=variables))
    assert prompt.thinking == thinking


def test_a_model_may_always_think(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(write_dialect(tmp_path, TEMPLATES["json"]))
    always = find_dialect(tokenizer.chat_template, tokenizer.control_tokens, reasoning_parser="think_always")
    assert ChatRenderer(tokenizer, always).prompt([{"role": "user", "content": "a"}], ChatOptions()).thinking == "open"
