"""POST /tokenize and /detokenize, in vLLM's shape: what a prompt or a chat comes to in tokens, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from cluster.gateway.body import check_object
from cluster.gateway.chat_protocol import MAX_MESSAGES, MAX_TOOLS, ChatRequest, Message, Tool
from cluster.gateway.chat_steering import plan_chat
from cluster.gateway.embedder import EmbedderService
from cluster.gateway.entrance import json_body, read_body, refusals_counted
from cluster.gateway.errors import bad_request
from cluster.gateway.protocol import Strict
from cluster.gateway.service import GatewayService, ModelService
from cluster.metrics import UNKNOWN_MODEL
from replicas.text.detokenizer import Detokenizer

CHAT_FIELDS = {
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
}


class TokenizeRequest(Strict):
    """A bare prompt or a chat. Without `model`, the first one that is served."""

    NOT_YET: ClassVar[Mapping[str, tuple[Any, ...]]] = {"mm_processor_kwargs": ({},)}

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt or messages is required, and not both")
        if self.messages is not None and self.add_special_tokens:
            raise ValueError("add_special_tokens is not for messages, whose special tokens the chat template writes")
        return self


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: list[int]


def add_tokenize(app: FastAPI, gateway: GatewayService) -> None:
    @app.post("/tokenize", openapi_extra=json_body(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        body = await read_body(gateway, request, TokenizeRequest, own_limits=("prompt",))
        with refusals_counted(gateway, _known(gateway, body.model)):
            model = _model(gateway, body.model)
            token_ids = await gateway.off_loop(partial(_encode, model, body))
        spellings = list(map(model.tokenizer.spelling, token_ids)) if body.return_token_strs else None
        return JSONResponse(
            {
                "count": len(token_ids),
                "max_model_len": model.info.max_model_len,
                "tokens": token_ids,
                "token_strs": spellings,
            }
        )

    @app.post("/detokenize", openapi_extra=json_body(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        body = await read_body(gateway, request, DetokenizeRequest, own_limits=("tokens",))
        with refusals_counted(gateway, _known(gateway, body.model)):
            model = _model(gateway, body.model)
            _check_tokens(body.tokens, model.info.vocab_size)
            return JSONResponse({"prompt": await gateway.off_loop(partial(_decode, model, body.tokens))})


def _model(gateway: GatewayService, name: str | None) -> ModelService | EmbedderService:
    """Raises ApiError."""
    if name is None:
        every: list[ModelService | EmbedderService] = [*gateway.models.values(), *gateway.embedders.values()]
        return every[0]
    return gateway.embedders.get(name) or gateway.model(name)


def _known(gateway: GatewayService, name: str | None) -> str:
    return name if name is not None and (name in gateway.models or name in gateway.embedders) else UNKNOWN_MODEL


def _encode(model: ModelService | EmbedderService, body: TokenizeRequest) -> list[int]:
    """What the model would be given. Raises ApiError."""
    try:
        if body.prompt is not None:
            return _encode_prompt(model, body.prompt, body.add_special_tokens is not False)
        if isinstance(model, EmbedderService):
            raise ValueError(f"{model.id} makes embeddings, and has no chat template")
        fields = body.model_dump(include=CHAT_FIELDS, exclude_none=True)
        return plan_chat(model, check_object(fields | {"model": model.id}, ChatRequest)).token_ids(model, None)
    except ValueError as error:
        raise bad_request(f"{str(error).rstrip('.')}.", "prompt" if body.messages is None else "messages") from None


def _encode_prompt(model: ModelService | EmbedderService, prompt: str, add_special: bool) -> list[int]:
    """Raises ValueError."""
    if isinstance(model, EmbedderService):
        return model.tokenizer.encode(prompt, add_special=add_special)
    add_bos = add_special and model.tokenizer.add_bos
    return model.tokenizer.encode(prompt, add_bos=add_bos, parse_special=True)


def _decode(model: ModelService | EmbedderService, token_ids: Sequence[int]) -> str:
    if isinstance(model, EmbedderService):
        return model.tokenizer.decode(token_ids)
    detokenizer = Detokenizer(model.tokenizer, skip_special=False)
    return detokenizer.push(token_ids) + detokenizer.finish()


def _check_tokens(token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises ApiError."""
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise bad_request(
                f"tokens.{index} is {str(token_id)[:40]}, but token ids are whole numbers from 0 to {vocab_size - 1}.",
                f"tokens.{index}",
            )
