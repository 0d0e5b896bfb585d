"""From a choice's tokens to the text that its client gets: detokenizer, then stop strings, then the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicas.messages import FinishReason, TokenLogprobs
from replicas.text.detokenizer import Detokenizer
from replicas.text.stop_scope import StopScope
from replicas.text.stops import StopChecker, StopStrings
from replicas.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextRules:
    """How the tokens of a request's choices become text.

    Stop strings are looked for in the text that follows the first `min_tokens` tokens; one that is complete earlier
    stays in the text. With a `stop_scope` they count in a part of the text only. `continues_text`: the answer follows
    the prompt in one text, so that a first space of it stays. `discards`: the caller wants no token at all, and the one
    that an engine must draw is not for it.
    """

    stops: StopStrings | None = None
    min_tokens: int = 0
    continues_text: bool = False
    skip_special: bool = True
    kept_special: frozenset[int] = frozenset()
    stop_scope: Callable[[], StopScope] | None = None
    discards: bool = False


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its log probabilities (None for the first of a prompt), and the bytes that it adds to the text: None
    if it is not shown there."""

    token_id: int
    logprobs: TokenLogprobs | None
    shown: bytes | None


class TextStream:
    """The joined texts do not depend on how the tokens were split over calls of `push`.

    `num_tokens` counts what the client is charged for: every token up to the one that completed a stop string. After
    a stop the engine may have computed more; it is dropped.
    """

    def __init__(self, tokenizer: Tokenizer, rules: TextRules) -> None:
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._tokenizer = tokenizer
        self._rules = rules
        self._detokenizer = Detokenizer(tokenizer, rules.skip_special, rules.continues_text, rules.kept_special)
        self._stops = StopChecker(rules.stops) if rules.stops is not None else None
        self._scope = rules.stop_scope() if rules.stop_scope is not None and rules.stops is not None else None
        self._scored: list[ScoredToken] = []

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.matched if self._stops is not None else None

    def push(
        self, token_ids: Sequence[int], reason: FinishReason | None, logprobs: Sequence[TokenLogprobs] = ()
    ) -> str:
        """Text that may be sent now. `reason` is given with a request's last tokens; an engine's "stop" means that
        the very last one is a stop token, whose text is not part of the answer."""
        assert self.finish_reason is None, "the text has ended"
        if self._rules.discards:
            self.finish_reason = "length"
            return ""
        visible = token_ids[:-1] if reason == "stop" else token_ids
        if self._stops is None and not logprobs:
            self.num_tokens += len(visible)
            text = self._detokenizer.push(visible)
        else:
            text = self._push_each(visible, logprobs)
        if self.finish_reason is not None or reason is None:
            return text
        if len(token_ids) > len(visible):
            self.num_tokens += 1
            self._scored += [ScoredToken(token_ids[-1], scores, None) for scores in logprobs[-1:]]
        return text + self._finish(reason)

    def take_scored(self) -> tuple[ScoredToken, ...]:
        """Those of the tokens pushed so far that were not taken before, if they came with log probabilities."""
        scored, self._scored = tuple(self._scored), []
        return scored

    def _push_each(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> str:
        parts = []
        for index, token_id in enumerate(token_ids):
            if logprobs:
                self._scored.append(ScoredToken(token_id, logprobs[index], self._detokenizer.shown(token_id)))
            text = self._detokenizer.push((token_id,))
            self.num_tokens += 1
            parts.append(self._check(text, self.num_tokens < self._rules.min_tokens))
            if self.finish_reason is not None:
                break
        return "".join(parts)

    def _check(self, text: str, is_early: bool) -> str:
        """What the stop strings let through, and the end if one is complete."""
        if self._stops is None:
            return text
        exempt, text = self._scope.push(text) if self._scope is not None else ("", text)
        if is_early:
            return exempt + text
        text = self._stops.push(text)
        if self._stops.stopped:
            self.finish_reason = "stop"
        return exempt + text

    def _finish(self, reason: FinishReason) -> str:
        """Flush what was held back: an incomplete character, and the beginning of a stop string."""
        self.finish_reason = reason
        rest = self._check(self._detokenizer.finish(), is_early=False)
        if self._stops is None or self._stops.stopped:
            return rest
        exempt, held = self._scope.finish() if self._scope is not None else ("", "")
        held = self._stops.push(held)
        if self._stops.stopped:
            self.finish_reason = "stop"
            return rest + exempt + held
        return rest + exempt + held + self._stops.finish()
