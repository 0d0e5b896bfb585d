"""By what names the parsers of answers are asked for. `auto` takes what the model's chat template shows."""

from __future__ import annotations

from typing import Literal

ToolParserName = Literal["auto", "hermes", "llama", "mistral", "mistral_list", "pythonic", "json", "none"]
ReasoningParserName = Literal["auto", "think", "think_always", "mistral", "seed", "none"]
