"""Parsers of tool calls: what models write becomes calls, what only looks like calls stays content, and how the text
is split makes no difference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicas.text.parts import CallArguments, CallStart, Content
from replicas.text.tools.calls import CallParser
from replicas.text.tools.formats import TOOL_FORMATS, ToolFormat
from replicas.text.tools.mistral import fit_mistral_id
from tests.support.answers import CALLS, NAMES, calls_of, content_of, parse, pieces

NASTY = {"xs": [{"k": '}"]'}, {}], "s": "a\nb"}
MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|python_start|>")
JSON = (
    '{"name": "f", ',
    '"arguments": ',
    '"parameters": {',
    '{"a": 1',
    "}",
    "]",
    "[",
    "{",
    '"',
    "\\",
    ",",
    "1e",
    "\\u00",
)
OTHER = (";", "[f(", "a=", "'x'", ")", "get_weather", "\n", " ", "Hello", "<tool", "🫠", "-", "True")
FRAGMENTS = st.sampled_from((*MARKS, *JSON, *OTHER))
FEW = settings(max_examples=15, deadline=None)
GARBAGE = st.lists(FRAGMENTS | st.text(max_size=3), max_size=14).map("".join)


def new_parser(name: str, known: tuple[str, ...] = NAMES) -> CallParser:
    return TOOL_FORMATS[name].parser(known, new_id=lambda: "id")


def written(form: ToolFormat, calls: list[tuple[str, Any]]) -> str:
    return form.write([(name, json.dumps(arguments)) for name, arguments in calls])


@pytest.fixture(params=TOOL_FORMATS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


class TestEveryFormat:
    @FEW
    @given(calls=CALLS, before=st.sampled_from(["", "Let me see.\n\n", "a  "]), cuts=st.lists(st.integers(0, 300)))
    @example(calls=[("f", NASTY), ("get_weather", {})], before="So:\n", cuts=list(range(300)))
    @pytest.mark.parametrize("name", TOOL_FORMATS)
    def test_reads_what_it_writes_however_it_is_split(
        self, name: str, calls: list[tuple[str, Any]], before: str, cuts: list[int]
    ) -> None:
        text = before + written(TOOL_FORMATS[name], calls)
        parser = new_parser(name)
        parts = parse(parser, pieces(text, cuts))
        assert calls_of(parts) == calls
        assert content_of(parts) == before.rstrip()
        assert parser.has_whole_calls
        assert parts == parse(new_parser(name), [text])

    @FEW
    @given(text=GARBAGE, cuts=st.lists(st.integers(0, 80)))
    @pytest.mark.parametrize("name", TOOL_FORMATS)
    def test_makes_the_same_of_any_text_however_it_is_split(self, name: str, text: str, cuts: list[int]) -> None:
        assert parse(new_parser(name), pieces(text, cuts)) == parse(new_parser(name), [text])

    @FEW
    @given(text=GARBAGE)
    @pytest.mark.parametrize("name", TOOL_FORMATS)
    def test_swallows_nothing(self, name: str, text: str) -> None:
        parts = parse(new_parser(name, known=()), [text])
        if not calls_of(parts):
            assert content_of(parts) == text

    @FEW
    @given(calls=CALLS, cut=st.integers(0, 200))
    @pytest.mark.parametrize("name", TOOL_FORMATS)
    def test_gives_the_beginning_of_the_same_if_the_text_is_cut(
        self, name: str, calls: list[tuple[str, Any]], cut: int
    ) -> None:
        text = written(TOOL_FORMATS[name], calls)[:cut]
        parser = new_parser(name)
        parts = parse(parser, [text])
        found = calls_of(parts)
        if not found:
            assert content_of(parts) == text
            return
        assert [called for called, _ in found] == [called for called, _ in calls[: len(found)]]
        assert [arguments for _, arguments in found[:-1]] == [arguments for _, arguments in calls[: len(found) - 1]]
        if parser.has_whole_calls:
            assert found[-1] == calls[len(found) - 1]

    def test_streams_arguments_as_they_come(self, name: str) -> None:
        form = TOOL_FORMATS[name]
        parser = new_parser(name)
        assert parser.push("So: " + form.before + form.begin("f")) == [Content("So:")]
        assert parser.push('{"text":') == [CallStart(0, "id", "f"), CallArguments(0, '{"text":')]
        assert parser.push(' "once upon') == [CallArguments(0, ' "once upon')]
        assert parser.push(" a ti") == [CallArguments(0, " a ti")]
        assert parser.push('me"}') == [CallArguments(0, 'me"}')]
        assert parser.push(form.end + form.behind) == []
        assert parser.finish() == []

    def test_passes_content_on_at_once(self, name: str) -> None:
        parser = new_parser(name)
        assert parser.push("Hello") == [Content("Hello")]
        assert parser.push(" wor") == [Content(" wor")]

    @pytest.mark.parametrize("text", ["", " ", "Hello", "\n\n1 < 2 and {x}, [1, 2]; \n", '{"a": 1}', "<tool", "[TOOL"])
    def test_leaves_other_text_as_it_is(self, name: str, text: str) -> None:
        parser = new_parser(name)
        parts = parse(parser, list(text))
        assert content_of(parts) == text
        assert not calls_of(parts)
        assert not parser.has_whole_calls

    def test_two_parsers_know_nothing_of_each_other(self, name: str) -> None:
        form = TOOL_FORMATS[name]
        first, second = new_parser(name), new_parser(name)
        text = written(form, [("f", {"a": 1})])
        first.push(text[: len(text) // 2])
        assert content_of(parse(second, ["Hello"])) == "Hello"
        assert calls_of(parse(first, [text[len(text) // 2 :]])) in ([("f", {"a": 1})], [])

    @pytest.mark.parametrize("depth", [2_000])
    def test_takes_any_depth(self, name: str, depth: int) -> None:
        form = TOOL_FORMATS[name]
        deep = '{"a":' * depth + "1" + "}" * depth
        parser = new_parser(name)
        parts = parse(parser, [form.write([("f", deep)])])
        assert "".join(part.text for part in parts if isinstance(part, CallArguments)) == deep


class TestHermes:
    @pytest.mark.parametrize(
        "text",
        [
            '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
            '\n<tool_call>\n\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>\n',
            '<tool_call>[{"name": "f", "arguments": {"a": 1}}]</tool_call>',
            '<tool_call>{"id": [1, {"x": "}"}], "name": "f", "arguments": {"a": 1}}</tool_call>',
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            '<tool_call>{"name": "f", "parameters": {"a": 1}}',
            '<tool_call>{"name": "f", "arguments": {"a": 1}',
        ],
    )
    def test_reads_what_models_make_of_the_form(self, text: str) -> None:
        parser = new_parser("hermes")
        parts = parse(parser, list(text))
        assert (calls_of(parts), content_of(parts)) == ([("f", {"a": 1})], "")
        assert parser.has_whole_calls

    @pytest.mark.parametrize("arguments", ["", ', "arguments": {}', ', "arguments": null', ', "arguments": "{}"'])
    def test_reads_calls_without_arguments(self, arguments: str) -> None:
        parts = parse(new_parser("hermes"), [f'<tool_call>{{"name": "f"{arguments}}}</tool_call>'])
        assert calls_of(parts) == [("f", {})]

    @pytest.mark.parametrize(
        "call",
        [
            "",
            "f",
            "{",
            "{}",
            "[]",
            '{"name": 3}',
            '{"name": ""}',
            '{"name": "f", "arguments": [1]}',
            '{"name": "f", "arguments": "x"}',
            '{"name": "f", "arguments": 3}',
            '{"name": "f", "arguments": {bad}}',
            "{'name': 'f'}",
            '{"name": "f" "arguments": {}}',
            '{"arguments": {"a": 1}}',
            '{"name": "f\\q"}',
        ],
    )
    def test_leaves_malformed_calls_in_the_content(self, call: str) -> None:
        text = f"So: <tool_call>{call}</tool_call> done"
        parser = new_parser("hermes")
        parts = parse(parser, list(text))
        assert content_of(parts) == text
        assert not calls_of(parts)
        assert not parser.has_whole_calls

    def test_goes_on_behind_a_malformed_call(self) -> None:
        text = '<tool_call>{"name": 3}</tool_call>\n<tool_call>{"name": "f"}</tool_call>'
        parts = parse(new_parser("hermes"), list(text))
        assert content_of(parts) == '<tool_call>{"name": 3}</tool_call>'
        assert calls_of(parts) == [("f", {})]

    def test_does_not_call_a_call_whole_that_broke_off(self) -> None:
        parser = new_parser("hermes")
        parts = parse(parser, ['<tool_call>{"name": "f", "arguments": {"a": bad}}</tool_call>'])
        assert calls_of(parts) == [("f", '{"a": ')]
        assert content_of(parts) == "bad}}</tool_call>"
        assert not parser.has_whole_calls

    @pytest.mark.parametrize("arguments", ['{"a:b": 1, bad}', '{"a:b" 1}', '{":": 1}', '{"a:'])
    def test_a_colon_in_a_key_is_no_sign_of_arguments(self, arguments: str) -> None:
        text = f'<tool_call>{{"name": "f", "arguments": {arguments}'
        assert parse(new_parser("hermes"), list(text)) == parse(new_parser("hermes"), [text])

    def test_escapes_control_characters_in_strings(self) -> None:
        parts = parse(new_parser("hermes"), ['<tool_call>{"name": "f", "arguments": {"a": "x\n\ty"}}</tool_call>'])
        assert calls_of(parts) == [("f", {"a": "x\n\ty"})]

    def test_names_of_other_tools_are_the_callers_to_judge(self) -> None:
        parts = parse(new_parser("hermes"), ['<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'])
        assert calls_of(parts) == [("unknown", {})]


class TestLlama:
    @pytest.mark.parametrize(
        "text",
        [
            '{"name": "f", "parameters": {"a": 1}}',
            '<|python_tag|>{"name": "f", "parameters": {"a": 1}}',
            ' <|python_tag|> {"type": "function", "name": "f", "parameters": {"a": 1}}',
            '{"name": "f", "arguments": {"a": 1}}',
        ],
    )
    def test_reads_calls_with_and_without_the_tag(self, text: str) -> None:
        parts = parse(new_parser("llama"), list(text))
        assert (calls_of(parts), content_of(parts)) == ([("f", {"a": 1})], "")

    @pytest.mark.parametrize("between", ["; ", ";", ", ", "\n", " "])
    def test_reads_several(self, between: str) -> None:
        one = '{"name": "f", "parameters": {}}'
        parts = parse(new_parser("llama"), list(one + between + one))
        assert (calls_of(parts), content_of(parts)) == ([("f", {})] * 2, "")

    @pytest.mark.parametrize(
        "text",
        [
            '{"name": "Ada", "age": 36}',
            '{"name": "unknown", "parameters": {}}',
            '{"parameters": {}}',
            '{"f": {"name": "g", "parameters": {}}}',
            "<|python_tag|>print(1)",
            '[{"name": "unknown"}]',
        ],
    )
    def test_other_json_is_content(self, text: str) -> None:
        parts = parse(new_parser("llama"), list(text))
        assert (calls_of(parts), content_of(parts)) == ([], text)


class TestMistral:
    @pytest.mark.parametrize(
        "text",
        [
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "math.factorial", "arguments": {}}]',
            '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"},{"name": "math.factorial"}]',
            '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]math.factorial[ARGS]{}',
            '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]math.factorial[CALL_ID]123456789[ARGS]{}',
            '[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]math.factorial{}',
        ],
    )
    def test_reads_the_old_and_the_new_form(self, text: str) -> None:
        parts = parse(new_parser("mistral"), list(text))
        assert (calls_of(parts), content_of(parts)) == ([("f", {"a": 1}), ("math.factorial", {})], "")

    def test_gives_ids_that_its_templates_take(self) -> None:
        form = TOOL_FORMATS["mistral"]
        ids = {form.new_id() for _ in range(100)}
        assert len(ids) == 100
        assert all(len(one) == 9 and one.isalnum() for one in ids)
        assert all(form.fit_id(one) == one for one in ids)
        fitted = fit_mistral_id("call_0123456789abcdef")
        assert len(fitted) == 9
        assert fitted.isalnum()
        assert fitted == fit_mistral_id("call_0123456789abcdef") != fit_mistral_id("call_1123456789abcdef")


class TestPythonic:
    @FEW
    @given(calls=CALLS, cuts=st.lists(st.integers(0, 300)))
    def test_reads_what_python_writes(self, calls: list[tuple[str, Any]], cuts: list[int]) -> None:
        named = [(called, {f"a{i}": value for i, value in enumerate(given.values())}) for called, given in calls]
        spelled = (
            f"{called}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for called, given in named
        )
        text = f"[{', '.join(spelled)}]"
        parts = parse(new_parser("pythonic"), pieces(text, cuts))
        assert calls_of(parts) == named
        assert content_of(parts) == ""

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("'it''s'", None),
            ("'it\\'s'", "it's"),
            ('"""a "b" \'c\'"""', "a \"b\" 'c'"),
            ("'\\x41\\101\\u00e9\\U0001F600\\q\\\n'", "AA\u00e9\U0001f600\\q"),
            ("(1, 2)", [1, 2]),
            ("[1, 2,]", [1, 2]),
            ("{'a': (), 'b': [None, True, False],}", {"a": [], "b": [None, True, False]}),
            ("1_000", 1000),
            ("-.5", -0.5),
            ("0x1F", 31),
            ("true", True),
            ("x", None),
            ("{1: 2}", None),
            ("1 + 1", None),
            ("inf", None),
            ("f()", None),
            ("'\\ud83d\\ude00'", "\U0001f600"),
        ],
    )
    def test_literals_become_json(self, text: str, value: Any) -> None:
        parser = new_parser("pythonic")
        parts = parse(parser, list(f"[f(a={text})]"))
        assert parser.has_whole_calls == (value is not None)
        if value is not None:
            assert calls_of(parts) == [("f", {"a": value})]

    @pytest.mark.parametrize(
        "text", ["[1, 2]", "[g(a=1)]", "[f]", "[f(1)]", "[f(a)]", "a[f(x)]", "[x for x in f(a=1)]"]
    )
    def test_other_lists_are_content(self, text: str) -> None:
        parts = parse(new_parser("pythonic"), list(text))
        assert (calls_of(parts), content_of(parts)) == ([], text)

    def test_may_stand_between_marks(self) -> None:
        parts = parse(new_parser("pythonic"), list("<|python_start|>[f(a=1)]<|python_end|>"))
        assert (calls_of(parts), content_of(parts)) == ([("f", {"a": 1})], "")
