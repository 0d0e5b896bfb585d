"""How one model speaks: which marks stand around its reasoning and its tool calls, and what its chat template knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta
from jinja2.defaults import DEFAULT_NAMESPACE

from replicas.text.control_tokens import ControlTokens
from replicas.text.parser_names import ReasoningParserName, ToolParserName
from replicas.text.reasoning import REASONING_FORMATS, ThinkMarks, find_think_marks
from replicas.text.tools.formats import TOOL_FORMATS, ToolFormat, find_tool_format

# What the renderer itself gives to templates: no caller may set these.
_OWN_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "raise_exception"}
    | {"strftime_now", "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}
    | {"conversations", "chat_template", "return_assistant_tokens_mask"}
    | DEFAULT_NAMESPACE.keys()
)
_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True)
class Dialect:
    """`variables` are those of the template that a caller may set. `tool_format` None: calls cannot be read.
    `knows_tools`: the template shows tools to the model; `knows_calls`: it shows earlier calls. `call_tokens` and
    `think_tokens` are the special tokens among the marks, which have to be seen in the text."""

    tool_format: ToolFormat | None = None
    think_marks: ThinkMarks | None = None
    variables: frozenset[str] = frozenset()
    knows_tools: bool = False
    knows_calls: bool = False
    call_tokens: frozenset[int] = frozenset()
    think_tokens: frozenset[int] = frozenset()

    def check_variables(self, variables: Mapping[str, Any]) -> None:
        """Raises ValueError for one that the template does not know."""
        for name in variables:
            if name not in self.variables:
                known = f"it knows {', '.join(sorted(self.variables))}" if self.variables else "it has none to set"
                raise ValueError(f"the model's chat template has no variable {name[:80]!r}; {known}")

    def effort_variables(self, effort: str) -> dict[str, Any]:
        """What says to the template how much to think. Raises ValueError if it cannot be told."""
        if "reasoning_effort" in self.variables:
            return {"reasoning_effort": effort}
        if switch := next((name for name in _SWITCHES if name in self.variables), None):
            return {switch: effort != "none"}
        raise ValueError("the model's chat template does not know any reasoning effort")

    def budget_variables(self, tokens: int) -> dict[str, Any]:
        """What says to the template how long to think. Raises ValueError if it cannot be told."""
        if "thinking_budget" not in self.variables:
            raise ValueError("the model's chat template does not know any thinking budget")
        return {"thinking_budget": tokens}


def find_dialect(
    template: str | None,
    control: ControlTokens,
    tool_parser: ToolParserName = "auto",
    reasoning_parser: ReasoningParserName = "auto",
) -> Dialect:
    """As the chat template tells, but for what the two names of formats say otherwise."""
    template = template or ""
    names = _variables(template)
    knows_tools = "tools" in names
    found = find_tool_format(template) if knows_tools else "json"
    tool_format = TOOL_FORMATS.get((found or "none") if tool_parser == "auto" else tool_parser)
    found_marks = find_think_marks(template)
    think_marks = found_marks if reasoning_parser == "auto" else REASONING_FORMATS.get(reasoning_parser)
    special = {token.content: index for index, token in control.tokens.items() if token.special}

    def tokens(marks: Iterable[str]) -> frozenset[int]:
        return frozenset(special[mark] for mark in marks if mark in special)

    return Dialect(
        tool_format=tool_format,
        think_marks=think_marks,
        variables=names - _OWN_VARIABLES,
        knows_tools=knows_tools,
        knows_calls="tool_calls" in template,
        call_tokens=tokens(tool_format.marks if tool_format else ()),
        think_tokens=tokens((think_marks.opening, think_marks.closing) if think_marks else ()),
    )


def _variables(template: str) -> frozenset[str]:
    """The names that a template takes from outside; for one with tags of its own, all names in it."""
    try:
        parsed = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False).parse(template)
    except TemplateSyntaxError:
        return frozenset(re.findall(r"[A-Za-z_]\w*", template))
    return frozenset(meta.find_undeclared_variables(parsed))
