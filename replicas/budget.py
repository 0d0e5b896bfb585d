"""How many prefill tokens a step may take: all that fit, unless somebody is decoding under an ITL objective."""

from __future__ import annotations


def prefill_budget(
    max_batched_tokens: int,
    num_decodes: int,
    itl_objective: float | None,
    decode_seconds: float,
    prefill_rate: float,
    smallest_chunk: int,
) -> int:
    """Prefill tokens that keep a mixed step within `itl_objective` seconds, given the measured duration of a
    decode-only step and the prefill rate in tokens/s (0: not measured yet). Never below `smallest_chunk`, so that
    prompts make progress even where the objective cannot be kept."""
    room = max_batched_tokens - num_decodes
    if itl_objective is None or num_decodes == 0 or prefill_rate == 0.0:
        return room
    affordable = int((itl_objective - decode_seconds) * prefill_rate)
    return min(room, max(affordable, smallest_chunk))
