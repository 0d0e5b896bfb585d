"""Whatever is written under the grammar of a schema is valid, by the word of `jsonschema`."""

from __future__ import annotations

import json
from random import Random

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from replicas.grammar.source import GrammarError
from replicas.sampling.grammar_spec import Grammar
from replicas.text.tokenizer import Tokenizer
from tests.support.masked_sampling import Vocabulary, small_vocabulary
from tests.support.schemas import NASTY_TEXTS, schemas

TEXTS = 12
TRIVIAL = ("{}", "[]", '""', "null", "true", "false", "0")


@pytest.fixture(scope="module")
def small() -> Vocabulary:
    return small_vocabulary()


def check(vocabulary: Vocabulary, name: str, schema, texts: int) -> str:
    """ "refused", "trivial" or "served", having proved that all finished texts are valid."""
    try:
        compiled = vocabulary.compile(Grammar("json_schema", json.dumps(schema)))
    except GrammarError:
        return "refused"
    dialect = validator_for(schema, Draft202012Validator)
    validator = dialect(schema, format_checker=dialect.FORMAT_CHECKER)
    random = Random(name)
    finished = [text for _ in range(texts) if (text := vocabulary.text(compiled, random)) is not None]
    for text in finished:
        errors = [error.message for error in validator.iter_errors(json.loads(text))]
        assert not errors, f"{name}: {text} is not valid: {errors}"
    only = {"const", "enum"} & set(schema) if isinstance(schema, dict) else set()
    few_values = {"type": "null"}, {"type": "boolean"}, {"type": "object", "additionalProperties": False}
    is_plain = any(text.strip() not in TRIVIAL for text in finished) or only or schema in few_values
    return "served" if finished and is_plain else "trivial"


def test_every_finished_text_is_valid_and_most_schemas_are_served(small):
    outcomes = {name: check(small, name, schema, TEXTS) for name, schema in schemas()}
    assert len(outcomes) >= 200
    assert sum(outcome == "served" for outcome in outcomes.values()) >= 0.85 * len(outcomes), outcomes
    hopeless = {name for name in outcomes if name.startswith("hopeless")}
    assert all(outcomes[name] == "refused" for name in hopeless), outcomes
    refused = {name for name, outcome in outcomes.items() if outcome == "refused"} - hopeless
    assert not refused, f"these should be served: {sorted(refused)}"


@pytest.mark.slow
def test_every_finished_text_is_valid_with_the_vocabulary_of_a_real_model(smollm2_path):
    tokenizer = Tokenizer.open(smollm2_path)
    (end,) = tokenizer.eos_token_ids
    pieces = [piece for token, piece in enumerate(tokenizer.visible_bytes) if token != end]
    real = Vocabulary([*pieces, b"<end>"])
    outcomes = [check(real, name, schema, 3) for name, schema in schemas()]
    assert outcomes.count("served") >= 0.85 * len(outcomes)


def test_every_member_of_an_enum_can_be_written_and_nothing_else(small):
    schema = {"$defs": {"e": {"enum": NASTY_TEXTS}}, "$ref": "#/$defs/e"}
    for body in (json.dumps(schema), json.dumps(schema, ensure_ascii=False)):
        compiled = small.compile(Grammar("json_schema", body))
        assert all(small.accepts(compiled, json.dumps(text, ensure_ascii=False)) for text in NASTY_TEXTS)
        assert not small.accepts(compiled, '"another"')


def test_non_ascii_text_is_written_as_it_is(small):
    compiled = small.compile(Grammar("json_schema", '{"const": "开心"}'))
    assert small.accepts(compiled, '"开心"')
    assert not small.accepts(compiled, '"\\u5f00\\u5fc3"')


def test_blanks_come_to_an_end(small):
    compiled = small.compile(Grammar("json_schema", '{"type": "object", "required": ["a"]}'))
    assert small.accepts(compiled, '{\n    "a": 1\n}')
    assert not small.accepts(compiled, "{" + " " * 50 + '"a": 1}')
    assert not small.accepts(compiled, "{" + "\n" * 5 + '"a": 1}')


def test_digits_come_to_an_end(small):
    for schema in ("{}", '{"type": "integer"}', '{"type": "number"}'):
        compiled = small.compile(Grammar("json_schema", schema))
        assert small.accepts(compiled, "123456789012345")
        assert not small.accepts(compiled, "1" * 40)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "phone"}, "format"),
        ({"type": "number", "multipleOf": 0.1}, "multipleOf"),
        ({"type": "object", "minProperties": 4}, "minProperties"),
        ({"type": "array", "contains": {"type": "null"}, "maxContains": 2}, "maxContains"),
        ({"$ref": "other.json"}, "$ref"),
        ({"$dynamicRef": "#x"}, "$dynamicRef"),
        ({"properties": {"a": {"minLenght": 3}}}, "minLenght"),
        ({"not": {"uniqueItems": True}}, "not"),
        ({"type": "string", "pattern": 3}, "pattern"),
        ({"type": "object", "required": "a"}, "required"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_its_keyword(small, schema, keyword):
    with pytest.raises(GrammarError, match=repr(keyword).replace("$", "\\$")):
        small.compile(Grammar("json_schema", json.dumps(schema)))


@pytest.mark.parametrize(
    "pattern", ["[", "(", "^(?=x)y$", "\\p{Foo}", "a{9999999}", "(a)\\1", "\\bword", "a{,3}", "x**"]
)
def test_a_pattern_that_cannot_be_enforced_is_refused_by_name(small, pattern):
    for grammar in (
        Grammar("regex", pattern),
        Grammar("json_schema", json.dumps({"type": "string", "pattern": pattern})),
    ):
        with pytest.raises(GrammarError, match="pattern"):
            small.compile(grammar)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 5}]}, ["0", "7"], ["3"]),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}, ['["a", "b"]'], ['["a", "a"]']),
        ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, ["3", "5"], ["2", "6"]),
        ({"type": "string", "pattern": "^b+$", "maxLength": 2}, ['"b"', '"bb"'], ['""', '"bbb"']),
        ({"type": "string", "pattern": "b"}, ['"abc"', '"b"', '"\\"b"'], ['"ac"']),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"🙂🙂"', '"abc"'], ['"🙂"', '"🙂🙂🙂🙂"']),
        ({"type": "object", "required": ["a"]}, ['{"a": 1}', '{"a":[],"b":2}'], ["{}", '{"b": 1}']),
        ({"dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}}, ['{"b": 1}'], ['{"a": 1}']),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1.25}, ["0.5", "1.25", "1"], ["0", "1.26", "-1"]),
    ],
)
def test_keywords_that_are_often_overlooked_are_enforced(small, schema, valid, invalid):
    compiled = small.compile(Grammar("json_schema", json.dumps(schema)))
    assert all(small.accepts(compiled, text) for text in valid)
    assert not any(small.accepts(compiled, text) for text in invalid)
