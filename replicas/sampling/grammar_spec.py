"""What a constraint on the output is, before anything compiles it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "ebnf", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """The output must be a sentence of what `text` describes in the language of `kind`. It holds behind the first
    occurrence of the token ids `after` in the output, such as the end of a reasoning part; from the start if there are
    none."""

    kind: GrammarKind
    text: str
    after: tuple[int, ...] = ()
