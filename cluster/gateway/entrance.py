"""What a request goes through before its endpoint looks at it: its key's limits, JSON, the fields."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from cluster.gateway.body import check_object, read_object
from cluster.gateway.caller import Caller
from cluster.gateway.errors import ApiError
from cluster.gateway.service import GatewayService
from cluster.metrics import UNKNOWN_MODEL

Body = TypeVar("Body", bound=BaseModel)


async def read_body(
    gateway: GatewayService, request: Request, kind: type[Body], own_limits: Collection[str] = ()
) -> Body:
    """Raises ApiError for a request that cannot be taken, and counts it. `own_limits`: see `check_object`."""
    caller: Caller = request.state.caller
    with refusals_counted(gateway, UNKNOWN_MODEL):
        await gateway.limits.admit(caller)
        return check_object(read_object(await request.body(), request.headers), kind, own_limits)


@contextmanager
def refusals_counted(gateway: GatewayService, model: str) -> Iterator[None]:
    """Counts an ApiError that comes out of the block as a refused request of `model`."""
    try:
        yield
    except ApiError as error:
        gateway.metrics.requests.labels(model, "refused" if error.status < 500 else "error").inc()
        raise


def json_body(kind: type[BaseModel]) -> dict[str, Any]:
    """What the OpenAPI document says of a body that `read_body` reads."""
    schema = kind.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
