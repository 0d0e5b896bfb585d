"""`mobula bench engine` as typer reads it: every option, and the way from them to results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deploy.catalog import DEFAULT_MODEL
from deploy.errors import UserError
from replicas.config import Dtype, Quantization

_ENGINE, _LOAD, _RESULT = "Engine", "Load", "Result"

Target = Annotated[
    str, typer.Argument(metavar="[MODEL|FILE]", help="As for `mobula serve`; of a .yaml file, its first model.")
]
DtypeName = Annotated[
    Dtype | None,
    Option(help="Type of weights and activations.", show_default="the file's, else auto", rich_help_panel=_ENGINE),
]
QuantizationName = Annotated[
    Quantization | None,
    Option(help="Of the weights.", show_default="the file's, else auto", rich_help_panel=_ENGINE),
]
Threads = Annotated[int | None, Option(help="That compute.", min=1, show_default="all", rich_help_panel=_ENGINE)]
Ablate = Annotated[bool, Option("--ablate", help="Switch each speed mechanism off in turn.", rich_help_panel=_ENGINE)]
Requests = Annotated[int, Option(help="Of the offline phase.", min=1, rich_help_panel=_LOAD)]
Prompt = Annotated[str, Option("--input", help="Tokens of its prompts.", rich_help_panel=_LOAD)]
Output = Annotated[str, Option(help="Tokens of its answers.", rich_help_panel=_LOAD)]
Prefix = Annotated[int, Option(help="Tokens that requests share.", min=1, rich_help_panel=_LOAD)]
Sharers = Annotated[int, Option(help="How many share them.", min=1, rich_help_panel=_LOAD)]
Rounds = Annotated[int, Option(help="Medians of so many count.", min=1, rich_help_panel=_LOAD)]
Seed = Annotated[int, Option(help="Decides lengths and tokens.", min=0, rich_help_panel=_LOAD)]
JsonFile = Annotated[
    Path | None, Option("--json", metavar="FILE", help="Write the result as JSON, too.", rich_help_panel=_RESULT)
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print errors only.", rich_help_panel=_RESULT)]


def bench_engine(
    context: typer.Context,
    target: Target = DEFAULT_MODEL,
    dtype: DtypeName = None,
    quantization: QuantizationName = None,
    threads: Threads = None,
    ablate: Ablate = False,
    requests: Requests = 64,
    prompt: Prompt = "32-512",
    output: Output = "128",
    prefix: Prefix = 1024,
    sharers: Sharers = 32,
    rounds: Rounds = 3,
    seed: Seed = 0,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """What an engine does by itself, and what share of the machine's limits that is."""
    from deploy.bench.engine.phases import Sizes
    from deploy.bench.engine.report import as_json, print_measured
    from deploy.bench.engine.session import Asked, measure
    from deploy.bench.serve.lengths import Span
    from deploy.config import config_for_model, load_config, to_engine_config, with_precision
    from deploy.json_file import check_folder, write_json
    from deploy.preflight import fetch_model

    check_folder(json_file and json_file.parent)
    config = load_config(Path(target)) if target.endswith((".yaml", ".yml")) else config_for_model(target)
    model = with_precision(config, dtype, quantization).models[0]
    try:
        sizes = Sizes(Span.parse(prompt), Span.parse(output), requests, prefix=prefix, sharers=sharers)
    except ValueError as error:
        raise UserError(str(error)) from error
    engine = to_engine_config(model)
    engine = replace(engine, threads=threads or engine.threads)
    asked = Asked(fetch_model(model.source, quiet), engine, sizes, rounds, seed, ablate)
    measured = measure(asked, (lambda title: None) if quiet else _say)
    if not quiet:
        print_measured(measured, model.id)
    write_json(json_file, as_json(measured, dict(context.params)))


def _say(title: str) -> None:
    """On the error stream, so that the results can be kept alone."""
    typer.echo(f"measuring {title}", err=True)
