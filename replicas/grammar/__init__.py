"""Structured output: from JSON schemas, regular expressions and grammars to masks over the vocabulary.

What a constraint means is decided here, in plain Python: schemas and patterns become grammars that allow only what they
allow, or are refused by the name of the keyword. xgrammar turns the grammars into masks.
"""
