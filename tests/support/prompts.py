"""Forty varied prompts, one to 1,500 tokens long: languages, code, numbers, repetition, odd characters."""

from __future__ import annotations

SHORT = [
    "A",
    "The",
    "Hello!",
    "1, 2, 3, 4,",
    "def fibonacci(n):\n",
    "The capital of France is",
    "Once upon a time,",
    "Q: What is the boiling point of water at sea level?\nA:",
    "SELECT name, age FROM users WHERE",
    "import numpy as np\n",
    "Der schnelle braune Fuchs",
    "El perro corre por",
    "La mer est",
    "今天天气",
    "Привет, как",
    "😀 emoji are",
    '{"name": "Ada", "age":',
    "<html>\n<head>\n<title>",
    "To be, or not to be,",
    "E = mc^2 means that",
    "List three primary colours:\n1.",
    "The quick brown fox jumps over the lazy dog. " * 3,
    "aaaaaaaaaaaaaaaaaaaaaaaa",
    "   leading spaces and\ttabs\n\n\nand newlines",
    "Translate to French: 'I like cheese.' ->",
    "In 1969, Neil Armstrong",
    "for (int i = 0; i < 10; i++) {",
    "Dear Sir or Madam,\n\nI am writing to",
    "The mitochondria is the",
    "Roses are red,\nViolets are blue,",
]

PARAGRAPHS = [
    "Manta rays are large rays that belong to the genus Mobula. The larger species reaches seven metres in width. "
    "Both have triangular pectoral fins, horn-shaped cephalic fins and large, forward-facing mouths. ",
    "A cache holds what was computed before, in the hope that it will be asked for again. Whether it pays depends on "
    "how often that happens, on what it costs to look, and on what must make room. ",
    "The train left the station at 7:45 and arrived at 11:20. It stopped four times, for six minutes each, and its "
    "speed between the stops never fell below ninety kilometres per hour. ",
    "def merge(left, right):\n    result = []\n    while left and right:\n        smaller = left if left[0] < right[0] "
    "else right\n        result.append(smaller.pop(0))\n    return result + left + right\n\n",
    "First, peel two onions and cut them finely. Then heat three spoons of oil in a heavy pan, add the onions and a "
    "little salt, and stir until they are soft and golden, which takes about a quarter of an hour. ",
]


def long_prompt(index: int, paragraphs: int) -> str:
    """A text of `paragraphs` paragraphs in an order of its own."""
    return "".join(PARAGRAPHS[(index + step * (index % 4 + 1)) % len(PARAGRAPHS)] for step in range(paragraphs))


PROMPTS = SHORT + [long_prompt(index, count) for index, count in enumerate((1, 2, 2, 3, 4, 5, 7, 10, 16, 32))]
