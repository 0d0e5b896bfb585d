"""One request, brought to its end: placed, and placed again wherever its replica fails it.

A request that goes on elsewhere takes its output so far with it as part of the prompt, and samples depend on nothing
but seed and position: so its client sees one answer, the same as without the failure. Whatever the gateway makes of
tokens (text, stop strings) never learns of it. Each attempt has an id of its own, so that nothing which belongs to an
earlier one can be taken for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from cluster.attempt import Attempt
from cluster.bus_client import BusClient
from cluster.codec import EngineInfo, Finished, Refused, Stranger, Submit, encode
from cluster.errors import NoReplicaError
from cluster.failover import Broken, Record
from cluster.fleet import Fleet, Member
from cluster.replica_port import ReplicaPort
from cluster.router.placement import Choice, Wish
from cluster.token_feed import TokenFeed
from replicas.kv.prefix import chain_keys, root_key
from replicas.messages import GenerateRequest

log = logging.getLogger(__name__)

RECOVERY_SECONDS = 30.0
WAIT_SECONDS = 1.0
MAX_SESSION = 128


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Sends requests of one model to its replicas. A draining replica is left after `move_after` seconds; `on_break`
    hears of every attempt that ended without an answer."""

    bus: BusClient
    fleet: Fleet
    port: ReplicaPort
    info: EngineInfo
    move_after: float
    on_break: Callable[[Broken], None]

    def dispatch(self, request: GenerateRequest, feed: TokenFeed, caller: str, session: str | None) -> Dispatch:
        """`session` is the caller's name for the conversation, if it has one."""
        return Dispatch(self, request, feed, f"{caller}/{session[:MAX_SESSION]}" if session else None)


class Dispatch:
    """`run` it once. The tokens arrive in the feed meanwhile."""

    def __init__(self, via: Dispatcher, request: GenerateRequest, feed: TokenFeed, session: str | None) -> None:
        self.record = Record()
        self._via = via
        self._asked = request
        self._present = request
        self._feed = feed
        self._session = session
        self._member: Member | None = None
        self._aborted = False

    async def run(self, remaining_seconds: float | None) -> Finished | Refused | None:
        """`remaining_seconds` are left until the first token is due. Returns None if the request was over when its
        replica failed, so that only its summary is missing. Raises NoReplicaError or PoisonRequestError when it has to
        be given up."""
        self._asked = self._present = replace(self._asked, remaining_seconds=remaining_seconds)
        while True:
            member, choice = await self._choose()
            outcome = await self._try(member, choice.ttft_seconds)
            if isinstance(outcome, Stranger):
                await self._introduce(outcome)
                continue
            if not isinstance(outcome, Broken):
                return outcome
            if self._aborted or self._feed.finish_reason is not None:
                return None
            self._via.on_break(outcome)
            log.warning("request %s leaves replica %s: %s", self._present.request_id, member.name, outcome.value)
            self.record.note(outcome, member.name, self._feed.has_begun, self._feed.new_tokens)
            self.record.check()
            self._present = self._resumed()

    def abort(self) -> None:
        """Have the engine end the request; `run` returns its summary."""
        self._aborted = True
        if self._member is not None:
            self._via.bus.abort(self._member.address, self._present.request_id)

    async def _introduce(self, stranger: Stranger) -> None:
        """The engine has forgotten this gateway, which was silent for too long."""
        try:
            await self._via.bus.connect(stranger.bus_address)
        except TimeoutError:
            raise NoReplicaError("The replica could not be reached; try again.") from None

    async def _choose(self) -> tuple[Member, Choice]:
        """Where the next attempt goes. A new request is refused if there is nowhere; one under way waits for a while,
        and in the end takes a replica that has failed it before and is back."""
        wish, waited, fleet = self._wish(frozenset(self.record.avoid)), 0.0, self._via.fleet
        while True:
            if (placed := fleet.place(wish)) is not None:
                if (settled := await fleet.confer(wish, *placed)) is not None:
                    return settled
                continue
            if self.record.breaks == [] or waited >= RECOVERY_SECONDS:
                raise NoReplicaError("No replica of this model is up; try again.", retry_after=5)
            if Broken.FULL in self.record.breaks and not self._feed.token_ids:
                raise NoReplicaError("All replicas are busy and their queues are full; try again.")
            await fleet.wait_for_arrival(WAIT_SECONDS)
            wish, waited = self._wish(frozenset()), waited + WAIT_SECONDS

    async def _try(self, member: Member, expected_ttft: float) -> Finished | Refused | Stranger | Broken:
        via, request, began = self._via, self._present, time.monotonic()

        def on_first_token() -> None:
            via.fleet.settle(request.request_id)
            via.fleet.succeeded(member, time.monotonic() - began, expected_ttft)

        self._feed.begin_attempt(on_first_token)
        attempt = Attempt(member, self._feed, via.move_after, can_move=lambda: via.fleet.open_replicas > 0)
        submit = encode(Submit(via.bus.gateway_id, request))
        via.bus.subscribe(request.request_id, self._feed)
        call = asyncio.create_task(via.port.submit(member.name, request.request_id, submit))
        call.add_done_callback(attempt.on_answer)
        member.guests[request.request_id] = attempt
        self._member = member
        try:
            outcome = await attempt.outcome
        finally:
            del member.guests[request.request_id]
            attempt.close()
            via.bus.unsubscribe(request.request_id)
            via.fleet.settle(request.request_id)
            if not call.done():
                via.bus.abort(member.address, request.request_id)
                call.cancel()
        if outcome in (Broken.LOST, Broken.SILENT):
            via.fleet.failed(member)
        is_unasked = isinstance(outcome, Finished) and outcome.summary.finish_reason in ("abort", "error")
        return Broken.GIVEN_UP if is_unasked and not self._aborted else outcome

    def _resumed(self) -> GenerateRequest:
        """The next attempt: the request with the tokens that have come."""
        asked, output, info = self._asked, self._feed.token_ids, self._via.info
        root = root_key(info.model_name, info.block_size, asked.cache_salt)
        token_ids = (*asked.token_ids, *output)
        rest = token_ids[len(asked.block_keys) * info.block_size :]
        new_keys = chain_keys((root, *asked.block_keys)[-1], rest, info.block_size)
        return replace(
            asked,
            request_id=f"{asked.request_id}~{len(self.record.breaks)}",
            token_ids=token_ids,
            resumed=len(output),
            block_keys=(*asked.block_keys, *new_keys),
        )

    def _wish(self, avoid: frozenset[str]) -> Wish:
        request = self._present
        return Wish(
            request_id=request.request_id,
            block_keys=() if request.scores_prompt else request.block_keys,
            num_tokens=len(request.token_ids),
            max_tokens=request.sampling.max_tokens - request.resumed,
            session=self._session,
            avoid=avoid,
        )
