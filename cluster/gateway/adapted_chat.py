"""What endpoints have in common that are chats in other words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from cluster.gateway.body import check_object
from cluster.gateway.caller import Caller
from cluster.gateway.chat_protocol import ChatRequest
from cluster.gateway.chat_steering import ChatPlan, plan_chat
from cluster.gateway.entrance import refusals_counted
from cluster.gateway.errors import ApiError, bad_request
from cluster.gateway.requests import Endpoint, Job, new_job
from cluster.gateway.service import GatewayService, ModelService
from cluster.metrics import UNKNOWN_MODEL


@dataclass(frozen=True, slots=True)
class Adapted:
    """A request for `model` that is a chat: `to_chat` gives the body of the chat request that it is to this model.
    `names` are what the chat's fields are called in the request itself, where that differs."""

    model: str
    to_chat: Callable[[ModelService], dict[str, Any]]
    names: Mapping[str, str]


async def adapted_job(
    gateway: GatewayService, endpoint: Endpoint, adapted: Adapted, caller: Caller, arrival: float
) -> Job[ChatRequest]:
    """Raises ApiError."""
    with _faults_told(gateway, adapted):
        chat, plan = await _plan(gateway, adapted)
        job = await new_job(gateway, endpoint, chat, [plan.token_ids], caller, arrival, plan.steering)
        await caller.reserve(job.reserved_tokens)
        return job


async def count_prompt(gateway: GatewayService, adapted: Adapted) -> int:
    """How many tokens the prompt has. Raises ApiError."""
    with _faults_told(gateway, adapted):
        _, plan = await _plan(gateway, adapted)
        try:
            return len(plan.token_ids(gateway.model(adapted.model), None))
        except ValueError as error:
            raise bad_request(f"{str(error).rstrip('.')}.", "messages") from None


async def _plan(gateway: GatewayService, adapted: Adapted) -> tuple[ChatRequest, ChatPlan]:
    model = gateway.model(adapted.model)
    chat = check_object(adapted.to_chat(model), ChatRequest)
    return chat, await gateway.off_loop(partial(plan_chat, model, chat))


@contextmanager
def _faults_told(gateway: GatewayService, adapted: Adapted) -> Iterator[None]:
    """Counts an ApiError, and tells it by the request's own names."""
    with refusals_counted(gateway, adapted.model if adapted.model in gateway.models else UNKNOWN_MODEL):
        try:
            yield
        except ApiError as error:
            raise _renamed(error, adapted.names) from None


def _renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    fault = error.body["error"]
    field, dot, rest = (fault["param"] or "").partition(".")
    if field not in names:
        return error
    message = fault["message"].replace(field, names[field])
    param = names[field] + dot + rest
    return ApiError(error.status, message, kind=fault["type"], param=param, code=fault["code"], headers=error.headers)
