"""From logits to tokens: parameters and the counter-based sampler."""
