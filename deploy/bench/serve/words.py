"""The words of a piece, as token ids or as English words. They depend on the piece's key alone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from deploy.bench.serve.workload import Piece

FIRST_ID, LAST_ID = 1000, 30_000  # beyond the bytes and special tokens of common vocabularies, and within all of them

# Each is one token of its own after a space, in the vocabularies of common models; `dialect` checks it.
_TEXT = """
the time people way water day part place case week company system program question work government number night point
home room mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea body
information back parent face level office door health person art war history party result
"""
WORDS = tuple(_TEXT.split())


def token_ids(pieces: Iterable[Piece]) -> list[int]:
    ids: list[int] = np.concatenate([_drawn(piece, LAST_ID - FIRST_ID) for piece in pieces]).tolist()
    return [FIRST_ID + each for each in ids]


def text(pieces: Iterable[Piece]) -> str:
    """One word for each token of the pieces."""
    return spelled(WORDS[index] for piece in pieces for index in _drawn(piece, len(WORDS)).tolist())


def spelled(words: Iterable[str]) -> str:
    return "".join(f" {word}" for word in words)


def _drawn(piece: Piece, below: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(piece.key).integers(0, below, piece.tokens)
