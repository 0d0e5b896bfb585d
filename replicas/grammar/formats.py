"""The formats of JSON Schema's strings as patterns. Each allows a part of what its RFC allows, and nothing else."""

from __future__ import annotations

from functools import cache

from replicas.grammar.expression import Expression
from replicas.grammar.pattern import match_expression

_DATE = (
    "([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    "|[1-9][0-9](0[48]|[2468][048]|[13579][26])-02-29)"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_PATH = r"(/[A-Za-z0-9._~-]*)*(\?[A-Za-z0-9._~=&-]*)?(#[A-Za-z0-9._~-]*)?"
_URI = rf"(https?|ftp)://[a-z0-9]+([.-][a-z0-9]+)*(:[1-9][0-9]{{0,3}})?{_PATH}"
_HOUR = "([0-9]{1,4}H([0-9]{1,4}M)?([0-9]{1,4}S)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S)"
_DAY = "([0-9]{1,4}Y([0-9]{1,2}M)?([0-9]{1,2}D)?|[0-9]{1,4}M([0-9]{1,2}D)?|[0-9]{1,4}D)"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P({_DAY}(T{_HOUR})?|T{_HOUR}|[0-9]{{1,4}}W)",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[a-z0-9]+([.-][a-z0-9]+)*\.[a-z]{2,12}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "uri": _URI,
    "uri-reference": f"({_URI}|{_PATH})",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "json-pointer": "(/([^~/]|~[01])*)*",
}
FORMATS = frozenset(_PATTERNS)

# Names that OpenAPI and pydantic write and that ask for nothing that a JSON string could miss.
FREE_FORMATS = frozenset({"password", "path", "file-path", "directory-path", "textarea", "multi-line", "markdown"})


@cache
def format_expression(name: str) -> Expression:
    return match_expression(_PATTERNS[name])
