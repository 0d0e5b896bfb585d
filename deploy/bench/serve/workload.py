"""What is sent, and when: a list of conversations, fixed by seeds before anything is sent.

A prompt is a row of pieces. A piece is a key and a length; equal keys spell equal words, so that prompts which begin
with the same pieces share a prefix. A single request is a conversation of one turn.

Later turns repeat the conversation so far with answers of the planned length in place of what the server really said.
So all servers get the same prompts, and what a prefix cache can reuse of a turn is the prompt of the turn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from numpy.random import Generator

from deploy.bench.serve.lengths import Lengths, LengthSource, scaled
from deploy.bench.serve.traces import MOONCAKE_BLOCK, TraceRow

Key = tuple[int, ...]
_PREFIX, _QUESTION, _ANSWER, _BLOCK = range(4)  # what a piece is, the second number of its key


@dataclass(frozen=True, slots=True)
class Piece:
    """`tokens` words that the key decides."""

    key: Key
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    prompt: tuple[Piece, ...]
    max_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return sum(piece.tokens for piece in self.prompt)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that follow one another, each `pause` seconds after the last one's answer; `start` is when the first one
    arrives in an open loop, in seconds."""

    turns: tuple[Turn, ...]
    start: float = 0.0
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What conversations look like. `prefix_tokens` come on top of the drawn length, and each of `prefixes` different
    ones is shared by as many conversations as any other."""

    lengths: LengthSource
    turns: int = 1
    pause: float = 0.0
    prefix_tokens: int = 0
    prefixes: int = 1


def conversations(shape: Shape, count: int, rng: Generator, text: Key) -> list[Conversation]:
    """`count` conversations. `rng` draws their lengths, and `text` their words."""
    lengths = shape.lengths.draw(count * shape.turns, rng)
    return [
        _conversation(shape, lengths[index * shape.turns : (index + 1) * shape.turns], text, index)
        for index in range(count)
    ]


def replay(rows: Sequence[TraceRow], length_scale: float, text: Key) -> list[Conversation]:
    """A trace's requests at the trace's times. Where it names blocks, equal blocks get equal words."""
    return [Conversation((_replayed(row, length_scale, text, index),), start=row.at) for index, row in enumerate(rows)]


def starting_at(planned: Sequence[Conversation], starts: Sequence[float]) -> list[Conversation]:
    return [replace(each, start=start) for each, start in zip(planned, starts, strict=True)]


def _conversation(shape: Shape, lengths: Sequence[Lengths], text: Key, index: int) -> Conversation:
    history: tuple[Piece, ...] = ()
    if shape.prefix_tokens:
        history = (Piece((*text, _PREFIX, index % shape.prefixes), shape.prefix_tokens),)
    turns = []
    for number, length in enumerate(lengths):
        history = (*history, Piece((*text, _QUESTION, index, number), length.prompt))
        turns.append(Turn(history, length.output))
        history = (*history, Piece((*text, _ANSWER, index, number), length.output))
    return Conversation(tuple(turns), pause=shape.pause)


def _replayed(row: TraceRow, scale: float, text: Key, index: int) -> Turn:
    length = scaled(Lengths(row.prompt_tokens, row.output_tokens), scale)
    block = max(1, round(MOONCAKE_BLOCK * scale))
    pieces, left = [], length.prompt
    for block_id in row.blocks:
        pieces.append(Piece((*text, _BLOCK, block_id), min(block, left)))
        left -= pieces[-1].tokens
    pieces.append(Piece((*text, _QUESTION, index), left))
    return Turn(tuple(piece for piece in pieces if piece.tokens), length.output)
