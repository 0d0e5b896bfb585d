"""What a caller is told when something is wrong: an error object, one short sentence, never a stack trace."""

from __future__ import annotations

from math import ceil
from typing import Any

MAX_MESSAGE = 500


class ApiError(Exception):
    """An error with an HTTP status. `param` names the field at fault, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = error_object(message, kind, param, code)


ANTHROPIC_PATH = "/v1/messages"  # and what is below it
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def body_at(path: str, error: ApiError) -> dict[str, Any]:
    """What the clients of this path are told: OpenAI's error object, or Anthropic's."""
    if not path.startswith(ANTHROPIC_PATH):
        return error.body
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.body["error"]["message"]}}


def error_object(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Message and param may hold anything that a caller wrote."""
    param = sendable(param) if param is not None else None
    return {"error": {"message": sendable(message)[:MAX_MESSAGE], "type": kind, "param": param, "code": code}}


def sendable(text: str) -> str:
    """Halves of surrogate pairs, which JSON can spell but UTF-8 cannot, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, retry_after: int = 1) -> ApiError:
    return ApiError(503, message, kind="server_error", code="unavailable", headers={"Retry-After": str(retry_after)})


def too_many_requests(message: str, retry_after: float, code: str = "rate_limit_exceeded") -> ApiError:
    """`retry_after`: the seconds after which the same request would be taken, if nobody else came."""
    headers = {"Retry-After": str(max(1, ceil(retry_after)))}
    return ApiError(429, message, kind="rate_limit_error", code=code, headers=headers)


def context_length_exceeded(limit: int, prompt: str, asked: int | None, param: str) -> ApiError:
    """`prompt` is a number of tokens, perhaps "at least" so many; `asked` is max_tokens as the caller gave it, where at
    least one token is wanted if it was left open."""
    answer = "at least 1" if asked is None else str(asked)
    return bad_request(
        f"This model's maximum context length is {limit} tokens, but you asked for {prompt} tokens in the prompt "
        f"and {answer} for the answer.",
        param,
        "context_length_exceeded",
    )
