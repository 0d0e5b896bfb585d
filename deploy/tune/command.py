"""`mobula tune` as typer reads it: every option, and the way from them to a configuration file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deploy.errors import UserError
from replicas.config import Dtype, Quantization

_OBJECTIVES, _LOAD, _SEARCH, _RESULT = "Objectives", "Load", "Search", "Result"

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Catalogue name, folder, .gguf file or hub id.")]
Ttft = Annotated[
    str, Option("--ttft-p99", help="Time to first token that 99 of 100 stay under.", rich_help_panel=_OBJECTIVES)
]
Itl = Annotated[
    str, Option("--itl-p99", help="Time between tokens that 99 of 100 stay under.", rich_help_panel=_OBJECTIVES)
]
Prompt = Annotated[str, Option("--input", help="Tokens of a prompt: 200, or 32-512.", rich_help_panel=_LOAD)]
Output = Annotated[str, Option(help="Tokens of an answer: 64, or 16-128.", rich_help_panel=_LOAD)]
Burstiness = Annotated[
    float, Option(help="Of arrivals: 1 is Poisson, less is burstier.", min=1e-3, rich_help_panel=_LOAD)
]
Duration = Annotated[str, Option(help="Of each run; but at least 20 requests arrive.", rich_help_panel=_SEARCH)]
Runs = Annotated[int, Option(help="At most so many.", min=1, rich_help_panel=_SEARCH)]
Rate = Annotated[float, Option(help="Requests a second to begin with.", min=1e-3, rich_help_panel=_SEARCH)]
Seed = Annotated[int, Option(help="Decides times and lengths.", min=0, rich_help_panel=_SEARCH)]
DtypeName = Annotated[Dtype, Option(help="Type of weights and activations.", rich_help_panel=_SEARCH)]
QuantizationName = Annotated[Quantization, Option(help="Of the weights.", rich_help_panel=_SEARCH)]
Threads = Annotated[int, Option(help="That compute; 0: all.", min=0, rich_help_panel=_SEARCH)]
Written = Annotated[Path, Option("--write", metavar="FILE", help="The configuration file.", rich_help_panel=_RESULT)]
JsonFile = Annotated[
    Path | None, Option("--json", metavar="FILE", help="Write the result as JSON, too.", rich_help_panel=_RESULT)
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print errors only.", rich_help_panel=_RESULT)]


def tune(
    context: typer.Context,
    model: Model,
    ttft: Ttft = "500ms",
    itl: Itl = "50ms",
    prompt: Prompt = "200",
    output: Output = "64",
    burstiness: Burstiness = 1.0,
    duration: Duration = "30s",
    runs: Runs = 30,
    rate: Rate = 1.0,
    seed: Seed = 0,
    dtype: DtypeName = "auto",
    quantization: QuantizationName = "auto",
    threads: Threads = 0,
    written: Written = Path("tuned.yaml"),
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Find the settings that serve most requests within objectives on this machine, by trying."""
    from deploy.bench.serve.lengths import Span, UniformLengths
    from deploy.bench.serve.load import Synthetic
    from deploy.bench.serve.options import seconds_of
    from deploy.bench.serve.workload import Shape
    from deploy.config import config_for_model, to_engine_config
    from deploy.json_file import check_folder, write_json
    from deploy.preflight import fetch_model
    from deploy.tune.report import as_json, print_tuned, told, verdict
    from deploy.tune.trials import Objectives, Trials, computing_with
    from deploy.tune.tuning import tune as search
    from deploy.tune.written import check_place, configuration

    check_place(written)
    check_folder(json_file and json_file.parent)
    objectives = Objectives(seconds_of("--ttft-p99", ttft), seconds_of("--itl-p99", itl))
    try:
        shape = Shape(UniformLengths(Span.parse(prompt), Span.parse(output)))
    except ValueError as error:
        raise UserError(str(error)) from error
    load = Synthetic(shape, None, seconds_of("--duration", duration), rate, burstiness, (seed,))
    section = config_for_model(model).models[0]
    config = replace(to_engine_config(section), dtype=dtype, quantization=quantization, threads=threads)
    trials = Trials(fetch_model(section.source, quiet), config, load, objectives)
    with computing_with(threads):
        tuned = search(
            trials.run,
            objectives,
            rate,
            runs,
            lambda tried: None if quiet else typer.echo(told(tried, runs), err=True),
        )
        trials.close()
    written.write_text(configuration(section, config, tuned.setting, objectives, verdict(tuned)))
    write_json(json_file, as_json(tuned, dict(context.params)))
    if not quiet:
        print_tuned(tuned)
        print(f"{written} is written: mobula serve {written}")
