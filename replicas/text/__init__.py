"""Text at the edges: tokenizer, chat template, detokenizer, stop strings. Never imports torch."""
