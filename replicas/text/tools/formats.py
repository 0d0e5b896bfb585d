"""The ways in which models write tool calls, and which of them a chat template teaches its model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicas.text.tools.bare_json import PYTHON_TAG, JsonParser, LlamaParser
from replicas.text.tools.calls import CallParser, NewId, new_call_id
from replicas.text.tools.hermes import HermesParser
from replicas.text.tools.mistral import ARGS, CALL_ID, TOOL_CALLS, MistralParser, fit_mistral_id, new_mistral_id
from replicas.text.tools.pythonic import PYTHON_END, PYTHON_START, PythonicParser


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written where the arguments are given as JSON: `before` them all, between `begin` (with the name)
    and `end` each, `separator` between them, `behind` them all. `marks` may be special tokens of a vocabulary."""

    parser: type[CallParser]
    begin: Callable[[str], str]
    end: str
    separator: str
    before: str = ""
    behind: str = ""
    marks: tuple[str, ...] = ()
    new_id: NewId = new_call_id
    fit_id: Callable[[str], str] = str  # an id from elsewhere, as the templates want it

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        """Calls, each a name and its arguments, as a model would write them."""
        written = (f"{self.begin(name)}{arguments}{self.end}" for name, arguments in calls)
        return f"{self.before}{self.separator.join(written)}{self.behind}"


def _object(key: str, before: str = "") -> Callable[[str], str]:
    return lambda name: f'{before}{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": '


TOOL_FORMATS = {
    "hermes": ToolFormat(
        HermesParser,
        begin=_object("arguments", "<tool_call>\n"),
        end="}\n</tool_call>",
        separator="\n",
        marks=("<tool_call>", "</tool_call>"),
    ),
    "llama": ToolFormat(LlamaParser, begin=_object("parameters"), end="}", separator="; ", marks=(PYTHON_TAG,)),
    "mistral": ToolFormat(
        MistralParser,
        begin=lambda name: f"{TOOL_CALLS}{name}{ARGS}",
        end="",
        separator="",
        marks=(TOOL_CALLS, ARGS, CALL_ID),
        new_id=new_mistral_id,
        fit_id=fit_mistral_id,
    ),
    "mistral_list": ToolFormat(
        MistralParser,
        begin=_object("arguments"),
        end="}",
        separator=", ",
        before=f"{TOOL_CALLS}[",
        behind="]",
        marks=(TOOL_CALLS, ARGS, CALL_ID),
        new_id=new_mistral_id,
        fit_id=fit_mistral_id,
    ),
    "pythonic": ToolFormat(
        PythonicParser,
        begin=_object("arguments"),
        end="}",
        separator="\n",
        marks=(PYTHON_START, PYTHON_END),
    ),
    "json": ToolFormat(JsonParser, begin=_object("arguments"), end="}", separator="\n"),
}

_UNREAD = (
    "<function=",
    "<arg_key>",
    "<invoke",
    "<｜tool▁call",
    "<|tool_call|>",
    "<|tool_call>",
    "<|channel|>",
    "<|START_ACTION|>",
)
# What tells a format: the first whose signs are in the template. None: a format that nothing here reads.
_SIGNS: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    (None, _UNREAD),
    ("mistral", (ARGS,)),
    ("mistral_list", (TOOL_CALLS,)),
    ("hermes", ("<tool_call>",)),
    ("pythonic", (PYTHON_START, "[func_name1(", "[func1(")),
    ("llama", (PYTHON_TAG, '"parameters": dictionary')),
    ("json", ("",)),
)


def find_tool_format(template: str) -> str | None:
    """The name of the format that a chat template teaches; None if it is one that nothing here reads."""
    return next(name for name, signs in _SIGNS if any(sign in template for sign in signs))
