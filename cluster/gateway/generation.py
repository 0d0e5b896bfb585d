"""One prompt on its way through the cluster: submit, read tokens, make text, and leave nothing running behind."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from math import inf

from cluster.codec import Finished, Refused
from cluster.errors import NoReplicaError, PoisonRequestError
from cluster.gateway.caller import Caller
from cluster.gateway.errors import ApiError, bad_request, unavailable
from cluster.gateway.gate import Ticket
from cluster.gateway.service import GatewayService, ModelService
from cluster.gateway.text_stream import ScoredToken, TextStream
from cluster.token_feed import FedTokens, TokenFeed
from replicas.messages import FinishReason, GenerateRequest, PromptLogprobs

log = logging.getLogger(__name__)

ABORT_GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of choice `index`; `finish_reason` comes with the last one. `scored` are the tokens since the last
    delta, if their log probabilities are wanted: those of the text, and perhaps of some that is held back yet."""

    index: int
    text: str
    finish_reason: FinishReason | None
    scored: tuple[ScoredToken, ...] = ()


class Generation:
    """Iterate `deltas` once. However that ends, by exhaustion, an error or cancellation, the engine stops working for
    it and its KV blocks become free.

    The further choices of a prompt have the first one as their `leader`: they begin when it has its first token, so
    that the prompt is computed once and they find its blocks in the prefix cache; and it alone is charged for it."""

    def __init__(
        self,
        gateway: GatewayService,
        model: ModelService,
        request: GenerateRequest,
        text: TextStream,
        index: int,
        caller: Caller,
        ticket: Ticket,
        leader: Generation | None = None,
    ) -> None:
        self.request = request
        self.text = text
        self.index = index
        self.charged_prompt = 0 if leader is not None else len(request.token_ids)
        self._leader = leader
        self._has_begun = asyncio.Event()
        self._gateway = gateway
        self._model = model
        self._caller = caller
        self._ticket = ticket
        self._arrival = ticket.arrival
        self._is_let_in = False
        self._feed = TokenFeed()
        self._dispatch = model.dispatcher.dispatch(request, self._feed, caller.name, caller.session)
        self._call: asyncio.Task[Finished | Refused | None] | None = None

    async def deltas(self) -> AsyncGenerator[Delta]:
        """At least one delta, the last of which has a finish_reason. Raises ApiError."""
        self._call = asyncio.create_task(self._run())
        self._call.add_done_callback(self._on_answer)
        last, outcome = self._arrival, "error"
        try:
            while self.text.finish_reason is None:
                fed = await self._feed.next()
                self._has_begun.set()
                if fed.finish_reason in ("abort", "error"):
                    raise unavailable("The engine gave this request up; try again.")
                last = self._observe_tokens(last, len(fed.token_ids))
                for some in self._portions(fed):
                    text = self.text.push(some.token_ids, some.finish_reason, some.logprobs)
                    if text or self.text.finish_reason is not None:
                        yield Delta(self.index, text, self.text.finish_reason, self.text.take_scored())
                    if self.text.finish_reason is not None:
                        break
            outcome = self.text.finish_reason
        except ApiError as error:
            outcome = "refused" if error.status < 500 else "error"
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "abort"
            raise
        finally:
            self._leave(outcome)

    async def _run(self) -> Finished | Refused | None:
        """Wait for the leader and for room, then be brought to the end; nothing may come in between, as the room is not
        reserved."""
        if self._leader is not None and self.request.block_keys:
            await self._leader._has_begun.wait()
        await self._model.gate.enter(self._ticket)
        self._is_let_in = True
        return await self._dispatch.run(self._model.gate.remaining_seconds(self._ticket))

    async def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache; known once the engine has ended the request."""
        assert self._call is not None, "the generation has not begun"
        if self._feed.summary is None:
            await asyncio.wait({self._call}, timeout=ABORT_GRACE_SECONDS)
        return self._feed.summary.cached_tokens if self._feed.summary else 0

    @property
    def prompt_logprobs(self) -> PromptLogprobs:
        """Those of the prompt's tokens, if they were asked for; known with the first delta."""
        return self._feed.prompt_logprobs

    @property
    def mean_logprob(self) -> float:
        """Of the answer's tokens, if their log probabilities were asked for: how likely the model finds it."""
        scores = [score.logprob for score in self._feed.logprobs[: self.text.num_tokens]]
        return sum(scores) / len(scores) if scores else -inf

    def _portions(self, fed: FedTokens) -> list[FedTokens]:
        """What goes into one event: all tokens that wait, or each alone."""
        last = len(fed.token_ids) - 1
        if self._gateway.settings.share_events or last < 1:
            return [fed]
        return [
            FedTokens([token_id], fed.logprobs[index : index + 1], fed.finish_reason if index == last else None)
            for index, token_id in enumerate(fed.token_ids)
        ]

    def _on_answer(self, call: asyncio.Task[Finished | Refused | None]) -> None:
        if call.cancelled():
            self._feed.fail(unavailable("The request was cancelled."))
            return
        if (error := call.exception()) is not None:
            self._feed.fail(self._explain(error))
            return
        match call.result():
            case Refused(message):
                self._feed.fail(bad_request(message + "."))
            case Finished(summary):
                self._feed.end(summary)

    def _explain(self, error: BaseException) -> ApiError:
        match error:
            case ApiError():
                return error
            case NoReplicaError():
                return unavailable(str(error), error.retry_after)
            case PoisonRequestError():
                return ApiError(500, str(error), kind="server_error", code="poison_request")
        log.error("request %s failed", self.request.request_id, exc_info=error)
        return unavailable("The request failed; try again.")

    def _observe_tokens(self, last: float, count: int) -> float:
        now, metrics = time.perf_counter(), self._gateway.metrics
        if count and last == self._arrival:
            metrics.ttft.labels(self._model.id).observe(now - last)
        elif count:
            metrics.itl.labels(self._model.id).observe((now - last) / count)
        return now if count else last

    def _leave(self, outcome: str) -> None:
        assert self._call is not None
        metrics, model = self._gateway.metrics, self._model.id
        metrics.requests.labels(model, outcome).inc()
        if outcome in ("stop", "length"):
            metrics.prompt_tokens.labels(model).inc(self.charged_prompt)
        metrics.generation_tokens.labels(model).inc(self.text.num_tokens)
        if self._is_let_in:
            metrics.e2e.labels(model).observe(time.perf_counter() - self._arrival)
            self._caller.used_tokens += self.charged_prompt + self.text.num_tokens
            self._model.gate.ended(self._ticket, self.text.num_tokens)
        self._call.add_done_callback(self._on_end)
        if self._call.done():
            return
        if self._feed.finish_reason is None:
            self._dispatch.abort()
        grace = 0.0 if outcome == "abort" else ABORT_GRACE_SECONDS  # otherwise the summary is wanted
        asyncio.get_running_loop().call_later(grace, self._call.cancel)

    def _on_end(self, _: object) -> None:
        if self._feed.summary is not None:
            self._gateway.metrics.queue.labels(self._model.id).observe(self._feed.summary.queue_seconds)
            if self._leader is None:
                self._gateway.metrics.cached_tokens.labels(self._model.id).inc(self._feed.summary.cached_tokens)


async def merge(generations: list[Generation]) -> AsyncGenerator[Delta]:
    """The deltas of several generations as they come. If one fails, all end."""
    if len(generations) == 1:
        async with aclosing(generations[0].deltas()) as deltas:
            async for delta in deltas:
                yield delta
        return
    queue: asyncio.Queue[Delta | Exception | None] = asyncio.Queue()

    async def forward(generation: Generation) -> None:
        try:
            async with aclosing(generation.deltas()) as deltas:
                async for delta in deltas:
                    queue.put_nowait(delta)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(forward(generation)) for generation in generations]
    try:
        remaining = len(tasks)
        while remaining:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                remaining -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
