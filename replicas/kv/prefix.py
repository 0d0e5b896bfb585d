"""Names of KV blocks: a key stands for a block's tokens and everything before them.

Keys are chained (a block's key covers its parent's key), so equal keys mean equal prefixes. The root of a chain
is tagged with the model and the caller's cache salt, each length-prefixed so that no two roots can be confused.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 16


def root_key(model: str, block_size: int, salt: str = "") -> bytes:
    """The parent of every first block of `model` in blocks of `block_size` tokens under `salt`."""
    digest = blake2b(digest_size=KEY_BYTES, person=b"mobula-root")
    for part in (model, str(block_size), salt):
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


def chain_keys(parent: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Keys of the full blocks of `token_ids`, the first of which follows `parent`. A partial last block has no key."""
    tokens = array("I", token_ids)
    raw, stride = memoryview(tokens).cast("B"), block_size * tokens.itemsize
    keys = []
    for end in range(stride, len(raw) + 1, stride):
        parent = blake2b(raw[end - stride : end], digest_size=KEY_BYTES, key=parent).digest()
        keys.append(parent)
    return keys
