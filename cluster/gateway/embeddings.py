"""POST /v1/embeddings: texts or token ids to vectors."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from fastapi import FastAPI, Request
from pydantic import field_validator
from starlette.responses import Response

from cluster.gateway.caller import Caller
from cluster.gateway.embedder import EmbedderService
from cluster.gateway.entrance import json_body, read_body, refusals_counted
from cluster.gateway.errors import ApiError, bad_request
from cluster.gateway.field_types import Int64
from cluster.gateway.protocol import Strict
from cluster.gateway.service import GatewayService
from cluster.metrics import UNKNOWN_MODEL
from replicas.text.tokenizer import TooManyTokens

MAX_INPUTS = 2048  # OpenAI's

_MALFORMED = "input must be a text, a list of texts, a list of token ids or a list of such lists, and not empty"


class EmbeddingRequest(Strict):
    """Whether token ids are the model's is checked with the model at hand."""

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
        "messages": (),
        "normalize": (True,),
        "priority": (0,),
        "request_id": (),
    }
    IGNORED: ClassVar[frozenset[str]] = frozenset({"user"})

    model: str
    input: Any
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Int64 | None = None
    truncate_prompt_tokens: Int64 | None = None
    add_special_tokens: bool = True
    user: str | None = None

    @field_validator("input")
    @classmethod
    def input_is_text_or_token_ids(cls, value: Any) -> Any:
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            raise ValueError(_MALFORMED)
        if type(value[0]) is int:
            return value
        if len(value) > MAX_INPUTS:
            raise ValueError(f"input has {len(value)} entries, but may have at most {MAX_INPUTS}")
        if not all(isinstance(entry, str) for entry in value) and not all(
            isinstance(entry, list) and entry for entry in value
        ):
            raise ValueError(_MALFORMED)
        return value

    @property
    def inputs(self) -> list[str | list[Any]]:
        return [self.input] if isinstance(self.input, str) or type(self.input[0]) is int else list(self.input)


def add_embeddings(app: FastAPI, gateway: GatewayService) -> None:
    @app.post("/v1/embeddings", openapi_extra=json_body(EmbeddingRequest))
    async def embeddings(request: Request) -> Response:
        arrival, caller = time.perf_counter(), request.state.caller
        body = await read_body(gateway, request, EmbeddingRequest, own_limits=("input",))
        return await _answer(gateway, body, caller, arrival)


async def _answer(gateway: GatewayService, body: EmbeddingRequest, caller: Caller, arrival: float) -> Response:
    """Raises ApiError."""
    with refusals_counted(gateway, body.model if body.model in gateway.embedders else UNKNOWN_MODEL):
        model = gateway.embedder(body.model)
        size = _size(model, body.dimensions)
        keep = _keep(model, body.truncate_prompt_tokens)
        sequences = await gateway.off_loop(partial(_sequences, model, body, keep))
        num_tokens = sum(map(len, sequences))
        await caller.reserve(num_tokens)
        vectors = await _embed(gateway, model, sequences)
    caller.used_tokens += num_tokens
    metrics = gateway.metrics
    metrics.requests.labels(model.id, "stop").inc()
    metrics.prompt_tokens.labels(model.id).inc(num_tokens)
    metrics.e2e.labels(model.id).observe(time.perf_counter() - arrival)
    content = await gateway.off_loop(partial(_render, model.id, vectors, size, body.encoding_format, num_tokens))
    return Response(content, media_type="application/json")


async def _embed(gateway: GatewayService, model: EmbedderService, sequences: list[list[int]]) -> np.ndarray:
    """Raises ApiError."""
    outcomes = gateway.metrics.requests
    try:
        return await model.embed(sequences)
    except ExceptionGroup as group:
        told = next((error for error in group.exceptions if isinstance(error, ApiError)), None)
        if told is None:
            outcomes.labels(model.id, "error").inc()
        raise told or group from None
    except asyncio.CancelledError:
        outcomes.labels(model.id, "abort").inc()
        raise


def _size(model: EmbedderService, dimensions: int | None) -> int:
    """Raises ApiError for a length to which the model's vectors cannot be cut."""
    size, allowed = model.info.size, model.info.dimensions
    if dimensions is None or dimensions == size or dimensions in allowed:
        return dimensions or size
    if model.info.any_dimension:
        if 1 <= dimensions < size:
            return dimensions
        raise bad_request(f"dimensions is {dimensions}, but must be between 1 and {size}.", "dimensions")
    may = f"may have {', '.join(map(str, allowed))} or {size}" if allowed else f"have {size}, and cannot be cut"
    raise bad_request(f"dimensions is {dimensions}, but the elements of {model.id}'s vectors {may}.", "dimensions")


def _keep(model: EmbedderService, truncate: int | None) -> int | None:
    """How many tokens of a text are kept; -1 means as many as the model takes. Raises ApiError."""
    most = model.info.max_model_len
    if truncate is None or truncate == -1:
        return None if truncate is None else most
    if not 1 <= truncate <= most:
        raise bad_request(
            f"truncate_prompt_tokens is {truncate}, but must be -1 or between 1 and {most}.", "truncate_prompt_tokens"
        )
    return truncate


def _sequences(model: EmbedderService, body: EmbeddingRequest, keep: int | None) -> list[list[int]]:
    """Raises ApiError."""
    is_list = isinstance(body.input, list) and type(body.input[0]) is not int
    return [
        _sequence(model, entry, f"input.{index}" if is_list else "input", body.add_special_tokens, keep)
        for index, entry in enumerate(body.inputs)
    ]


def _sequence(
    model: EmbedderService, entry: str | list[Any], field: str, add_special: bool, keep: int | None
) -> list[int]:
    most = model.info.max_model_len
    if isinstance(entry, list):
        sequence = entry[:keep]
        if len(sequence) > most:
            raise _too_long(model, len(sequence), field)
        _check_token_ids(sequence, model.info.vocab_size, field)
        return sequence
    try:
        sequence = model.tokenizer.encode(entry, add_special=add_special, limit=most, keep=keep)
    except TooManyTokens as error:
        raise _too_long(model, error.at_least, field) from None
    except ValueError as error:
        raise bad_request(f"{field}: {error}.", field) from None
    if not sequence:
        raise bad_request(f"{field} comes to no token, but must have at least one.", field)
    return sequence


def _check_token_ids(token_ids: list[Any], vocab_size: int, field: str) -> None:
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            found = str(token_id)[:40] if isinstance(token_id, int | float) else type(token_id).__name__
            raise bad_request(
                f"{field}.{index} is {found}, but token ids are whole numbers from 0 to {vocab_size - 1}.",
                f"{field}.{index}",
            )


def _too_long(model: EmbedderService, num_tokens: int, field: str) -> ApiError:
    return bad_request(
        f"{field} has {num_tokens} tokens, but {model.id} takes at most {model.info.max_model_len}; "
        "truncate_prompt_tokens leaves out the end of longer texts.",
        field,
        "context_length_exceeded",
    )


def _render(model_id: str, vectors: np.ndarray, size: int, encoding: str, num_tokens: int) -> bytes:
    if size < vectors.shape[1]:
        vectors = vectors[:, :size]
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model_id, "usage": usage})


def _encoded(vector: np.ndarray, encoding: str) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values
