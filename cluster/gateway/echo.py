"""A prompt given back in front of its completion."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.gateway.text_stream import ScoredToken
from replicas.messages import PromptLogprobs
from replicas.text.detokenizer import Detokenizer
from replicas.text.tokenizer import Tokenizer


def echo(
    tokenizer: Tokenizer, prompt: str | None, token_ids: Sequence[int], scores: PromptLogprobs
) -> tuple[str, list[ScoredToken]]:
    """The text, which is the caller's own `prompt` if it gave one, and its tokens, if they have been scored. A BOS
    token that the caller did not write is not shown."""
    detokenizer = Detokenizer(tokenizer, skip_special=False)
    parts, tokens = [], []
    for index, token_id in enumerate(token_ids):
        is_shown = index > 0 or prompt is None or not _is_added_bos(tokenizer, prompt, token_id)
        if scores:
            tokens.append(ScoredToken(token_id, scores[index], detokenizer.shown(token_id) if is_shown else None))
        if is_shown:
            parts.append(detokenizer.push((token_id,)))
    text = "".join(parts) + detokenizer.finish()
    return text if prompt is None else prompt, tokens


def _is_added_bos(tokenizer: Tokenizer, prompt: str, first: int) -> bool:
    return first == tokenizer.bos_token_id and not prompt.startswith(tokenizer.token_bytes[first].decode())
