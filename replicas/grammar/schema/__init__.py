"""JSON schemas as grammars. All that such a grammar allows is valid; where not all that is valid can be allowed, it
allows less (properties come in the schema's order, for one), and what cannot be told is refused by its keyword."""
