"""What constraints cost: `python -m deploy.bench.grammar FILE.gguf` times what masks add to the steps of an engine.

First the engine answers a full batch with and without constraints, at temperature 1. Then the masks of these very
answers are filled and applied again, step by step and without the model, and held against the time of a free step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from replicas.build import build_engine
from replicas.config import EngineConfig
from replicas.engine import Engine
from replicas.grammar.compiler import GrammarCompiler
from replicas.grammar.masks import MaskFiller
from replicas.grammar.matcher import Matcher
from replicas.grammar.tokens import TokenSpec
from replicas.messages import GenerateRequest
from replicas.sampling.bitmasks import apply_bitmasks
from replicas.sampling.grammar_spec import Grammar
from replicas.sampling.params import SamplingParams

MAX_TOKENS = 64
PROMPT_TOKENS = 32
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "other"]}, "maxItems": 4},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "required": ["name", "age", "tags", "address"],
}
GRAMMARS = {
    "json_object": Grammar("json_object", ""),
    "json_schema": Grammar("json_schema", json.dumps(PERSON)),
    "regex": Grammar("regex", r"(\d{3}-[a-z]{2,9}, )*\d{3}-[a-z]{2,9}\."),
    "ebnf": Grammar("ebnf", 'root ::= (word " ")* word "."\nword ::= [a-z]+'),
}


@dataclass(frozen=True, slots=True)
class Run:
    """The answers of one batch, and the milliseconds of its full steps."""

    answers: list[tuple[int, ...]]
    step: float


@dataclass(frozen=True, slots=True)
class MaskCosts:
    """Milliseconds of a step, medians: for telling the matchers their tokens, for filling and for applying masks."""

    accept: float
    fill: float
    apply: float

    @property
    def total(self) -> float:
        return self.accept + self.fill + self.apply


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    config = EngineConfig(max_running=options.batch, max_model_len=1024, device=options.device)
    engine = build_engine(str(options.model), config)
    device, vocab_size = torch.device(options.device), engine.model.vocab_size
    compiler = GrammarCompiler(TokenSpec(str(options.model), vocab_size, engine.model.eos_token_ids))
    compiler.compile(Grammar("choice", '["start"]')).result()
    free = _answer(engine, options.batch, None, lambda: None).step
    print(f"batch {options.batch}, {vocab_size} tokens: a step without constraints takes {free:.2f} ms")
    print(f"{'milliseconds':12} {'compile':>8} {'accept':>8} {'fill':>8} {'apply':>8} {'masks':>8} {'step':>8}")
    for name, grammar in GRAMMARS.items():
        started = time.perf_counter()
        compiled = compiler.compile(grammar).result()
        compile_ms = (time.perf_counter() - started) * 1000
        new = lambda compiled=compiled: compiler.matcher(compiled)  # noqa: E731
        run = _answer(engine, options.batch, grammar, new)
        costs = _mask_costs(run.answers, new, vocab_size, device)
        numbers = (compile_ms, costs.accept, costs.fill, costs.apply)
        print(
            f"{name:12} " + " ".join(f"{number:8.2f}" for number in numbers),
            f"{costs.total / free:8.1%} {run.step:8.2f}",
        )
    compiler.close()


def _answer(engine: Engine, batch: int, grammar: Grammar | None, new: Callable[[], Matcher | None]) -> Run:
    for number in range(batch):
        prompt = tuple((number * 31 + place * 7) % 1000 + 100 for place in range(PROMPT_TOKENS))
        sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=number, grammar=grammar, ignore_eos=True)
        engine.add(GenerateRequest(str(number), prompt, sampling), new())
    answers: list[tuple[int, ...]] = []
    steps: list[float] = []
    while engine.has_work:
        started = time.perf_counter()
        output = engine.step()
        if len(output.events) == batch:
            steps.append(time.perf_counter() - started)
        answers += [summary.token_ids for summary in output.finished]
    return Run(answers, statistics.median(steps[1:] or steps) * 1000)


def _mask_costs(
    answers: list[tuple[int, ...]], new: Callable[[], Matcher], vocab_size: int, device: torch.device
) -> MaskCosts:
    """Of as many rows as there are answers in every step: one that is over begins again."""
    filler, logits_RV = MaskFiller(vocab_size), torch.randn(len(answers), vocab_size, device=device)
    matchers, places = [new() for _ in answers], [0] * len(answers)
    accepting, filling, applying = [], [], []
    for _ in range(MAX_TOKENS):
        started = time.perf_counter()
        words_NW = filler.fill(matchers)
        filled = time.perf_counter()
        apply_bitmasks(logits_RV, range(len(answers)), words_NW)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        applied = time.perf_counter()
        for row, answer in enumerate(answers):
            assert matchers[row].accept(answer[places[row]]), "the engine drew what the constraint does not allow"
        accepting.append(time.perf_counter() - applied)
        filling.append(filled - started)
        applying.append(applied - filled)
        logits_RV.normal_()
        for row, answer in enumerate(answers):
            places[row] += 1
            if places[row] == len(answer):
                matchers[row], places[row] = new(), 0
    return MaskCosts(*(statistics.median(seconds) * 1000 for seconds in (accepting, filling, applying)))


if __name__ == "__main__":
    main()
