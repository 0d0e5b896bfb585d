"""From a choice's tokens to the text that its client gets: detokenizer, then stop strings, then the end."""

from __future__ import annotations

from collections.abc import Sequence

from replicas.messages import FinishReason
from replicas.text.detokenizer import Detokenizer
from replicas.text.stops import StopChecker, StopStrings
from replicas.text.tokenizer import Tokenizer


class TextStream:
    """The joined texts do not depend on how the tokens were split over calls of `push`.

    Stop strings are looked for in the text that follows the first `min_tokens` tokens; one that is complete
    earlier stays in the text. `num_tokens` counts what the client is charged for: every token up to the one that
    completed a stop string. After a stop the engine may have computed more; it is dropped. `continues_text`: the
    answer follows the prompt in one text, so that a first space of it stays.
    """

    def __init__(self, tokenizer: Tokenizer, stops: StopStrings | None, min_tokens: int, continues_text: bool) -> None:
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._detokenizer = Detokenizer(tokenizer, continues_text=continues_text)
        self._stops = StopChecker(stops) if stops is not None else None
        self._min_tokens = min_tokens

    def push(self, token_ids: Sequence[int], reason: FinishReason | None) -> str:
        """Text that may be sent now. `reason` is given with a request's last tokens; an engine's "stop" means that
        the very last one is a stop token, whose text is not part of the answer."""
        assert self.finish_reason is None, "the text has ended"
        visible = token_ids[:-1] if reason == "stop" else token_ids
        text = self._push_all(visible) if self._stops is None else self._push_each(visible, self._stops)
        if self.finish_reason is not None or reason is None:
            return text
        self.num_tokens += len(token_ids) - len(visible)
        return text + self._finish(reason)

    def _push_all(self, token_ids: Sequence[int]) -> str:
        self.num_tokens += len(token_ids)
        return self._detokenizer.push(token_ids)

    def _push_each(self, token_ids: Sequence[int], stops: StopChecker) -> str:
        parts = []
        for token_id in token_ids:
            text = self._detokenizer.push((token_id,))
            self.num_tokens += 1
            parts.append(text if self.num_tokens < self._min_tokens else stops.push(text))
            if stops.stopped:
                self.finish_reason = "stop"
                break
        return "".join(parts)

    def _finish(self, reason: FinishReason) -> str:
        """Flush what was held back: an incomplete character, and the beginning of a stop string."""
        self.finish_reason = reason
        rest = self._detokenizer.finish()
        if self._stops is None:
            return rest
        rest = self._stops.push(rest)
        if self._stops.stopped:
            self.finish_reason = "stop"
            return rest
        return rest + self._stops.finish()
