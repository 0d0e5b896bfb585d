"""Who asks: API keys, known by their SHA-256 only.

Keys are drawn at random (`new_key`), 256 bits long, so a fast hash without salt tells as little about them as a slow
one. A key is looked for among all of them, without an early exit and in constant time for each, so the time taken says
nothing about the keys there are.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers

ANONYMOUS = "anonymous"  # everybody's name where no keys are configured

_NAME = re.compile(r"[\w.@+-]{1,64}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key's hash, and the name by which limits, logs and metrics call its holder. Keys may share a name."""

    name: str
    digest: bytes

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name[:80]!r} is no name for a key: 1 to 64 letters, digits or any of . @ + _ -")

    @property
    def line(self) -> str:
        """As it stands in a file of keys."""
        return f"{self.name} {self.digest.hex()}"


def new_key(name: str) -> tuple[str, ApiKey]:
    """A fresh key, which nobody can tell from its hash, and that hash."""
    key = f"mob-{secrets.token_urlsafe(32)}"
    return key, hash_key(name, key)


def hash_key(name: str, key: str) -> ApiKey:
    """Raises ValueError for a key that no client could send."""
    if not key or not key.isascii() or any(character.isspace() for character in key):
        raise ValueError(f"the key of {name!r} must be ASCII without spaces, and not empty")
    return ApiKey(name, hashlib.sha256(key.encode()).digest())


def parse_key_lines(text: str) -> list[ApiKey]:
    """Keys from a file's text: a name and a SHA-256 in hexadecimal on each line; `#` begins a comment."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) != 2 or not _DIGEST.fullmatch(words[1]):
            raise ValueError(
                f"line {number} must be a name and a SHA-256 (64 hexadecimal digits), as `mobula key` prints"
            )
        keys.append(ApiKey(words[0], bytes.fromhex(words[1])))
    return keys


def parse_key_pairs(text: str) -> list[ApiKey]:
    """Keys from an environment variable: `NAME=KEY`, separated by commas or spaces. Never repeats a key."""
    keys = []
    for number, pair in enumerate(text.replace(",", " ").split(), 1):
        name, equals, key = pair.partition("=")
        if not equals:
            raise ValueError(f"entry {number} must be NAME=KEY")
        keys.append(hash_key(name, key))
    return keys


class KeyRing:
    """All keys that open this gateway; with none it is open to everybody."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)

    @property
    def is_open(self) -> bool:
        return not self._keys

    def holder(self, key: bytes) -> str | None:
        """The name of the one who holds `key`."""
        digest = hashlib.sha256(key).digest()
        found = None
        for known in self._keys:
            if hmac.compare_digest(known.digest, digest):
                found = known.name
        return found

    def caller(self, headers: Headers) -> str | None:
        """The name of the one who sent these headers; None without a good key. A key may also stand in x-api-key, where
        Anthropic's clients put it; two headers with keys are none."""
        if self.is_open:
            return ANONYMOUS
        given = [*headers.getlist("authorization"), *(f"bearer {key}" for key in headers.getlist("x-api-key"))]
        scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        return self.holder(key.strip().encode("latin-1")) if scheme.lower() == "bearer" else None
