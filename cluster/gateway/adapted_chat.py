"""What endpoints have in common that are chats in other words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cluster.gateway.body import check_object
from cluster.gateway.caller import Caller
from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.chat_steering import ChatPlan, plan_chat
from cluster.gateway.entrance import refusals_counted
from cluster.gateway.errors import bad_request
from cluster.gateway.requests import Endpoint, Job, new_job
from cluster.gateway.service import GatewayService, ModelService
from cluster.metrics import UNKNOWN_MODEL

ToChat = Callable[[ModelService], dict[str, Any]]
"""The body of the chat request that a request is, to this model."""


async def adapted_job(
    gateway: GatewayService, endpoint: Endpoint, model_id: str, to_chat: ToChat, caller: Caller, arrival: float
) -> Job[ChatRequest]:
    """Raises ApiError."""
    with refusals_counted(gateway, model_id if model_id in gateway.models else UNKNOWN_MODEL):
        chat, plan = await _plan(gateway, model_id, to_chat)
        job = await new_job(gateway, endpoint, chat, [plan.token_ids], caller, arrival, plan.steering)
        await caller.reserve(job.reserved_tokens)
        return job


async def count_prompt(gateway: GatewayService, model_id: str, to_chat: ToChat) -> int:
    """How many tokens the prompt has. Raises ApiError."""
    with refusals_counted(gateway, model_id if model_id in gateway.models else UNKNOWN_MODEL):
        _, plan = await _plan(gateway, model_id, to_chat)
        try:
            return len(plan.token_ids(gateway.model(model_id), None))
        except ValueError as error:
            raise bad_request(f"{str(error).rstrip('.')}.", "messages") from None


async def _plan(gateway: GatewayService, model_id: str, to_chat: ToChat) -> tuple[ChatRequest, ChatPlan]:
    model = gateway.model(model_id)
    chat = check_object(to_chat(model), ChatRequest)
    return chat, await gateway.off_loop(partial(plan_chat, model, chat))
