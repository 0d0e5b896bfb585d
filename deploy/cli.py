"""The command `mobula`. Each subcommand reads its options, imports what it needs and hands over."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.ingress import IngressMode
from deploy.bench.engine.command import bench_engine
from deploy.bench.serve.command import bench_serve
from deploy.errors import UserError
from deploy.json_file import write_json
from deploy.simulate.command import simulate
from deploy.tune.command import tune

if TYPE_CHECKING:
    from deploy.config import MobulaConfig
    from deploy.preflight import CheckedModel

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
bench = typer.Typer(no_args_is_help=True, help="Measure what a part costs on this machine.")
app.add_typer(bench, name="bench")
bench.command("serve")(bench_serve)
bench.command("engine")(bench_engine)
app.command()(simulate)
app.command()(tune)

Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Port = Annotated[int | None, typer.Option(help="TCP port to listen on.", min=1, max=65535, show_default="8000")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON, too.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


def main() -> None:
    """Run the command line. A mistake of the user's ends in one message and exit status 2."""
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mobula {version('mobula-serve')}")
        raise typer.Exit


@app.callback()
def about(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Serve large language models over HTTP from many GPUs."""


@app.command()
def serve(
    target: Annotated[
        str | None,
        typer.Argument(metavar="MODEL|FILE", help="Catalogue name, folder, .gguf file, hub id, or a .yaml file."),
    ] = None,
    host: Host = None,
    port: Port = None,
    dtype: Annotated[str | None, typer.Option(help="Type to compute in, for every model.", show_default="auto")] = None,
    quantization: Annotated[
        str | None, typer.Option(help="int8, int4 or none, for every model.", show_default="auto")
    ] = None,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Serve a model, or all that a configuration file names."""
    from deploy.config import with_precision
    from deploy.door import door_settings
    from deploy.preflight import check_address, fetch_models
    from deploy.provenance import check_provenance
    from deploy.serve import StageClock
    from deploy.serve import serve as run

    clock = StageClock(quiet)
    check_provenance(Path.cwd())
    config = with_precision(_read_target(target, host, port), dtype, quantization)
    door_settings(config, os.environ)
    check_address(config.gateway.host, config.gateway.port)
    with clock.stage("find and check the model files"):
        paths = fetch_models(config, quiet)
    run(config, paths, clock, json_file)


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Model to talk to.", show_default="the first one served")] = None,
    temperature: Annotated[float, typer.Option(help="How freely it speaks: 0 is greedy.", min=0, max=2)] = 0.2,
    key: Annotated[str | None, typer.Option(help="API key, if the server wants one.", envvar="MOBULA_API_KEY")] = None,
) -> None:
    """Talk to a served model in the terminal."""
    from deploy.chat import chat as run

    run(url, model, temperature, key)


@app.command()
def models(json_file: JsonFile = None, quiet: Quiet = False) -> None:
    """List the catalogue: models that need no model hub."""
    from deploy.catalog import entries

    rows: list[dict[str, Any]] = [
        {
            "name": entry.name,
            "model": entry.title,
            "bytes": entry.file.size,
            "licence": entry.licence,
            "cached": entry.cached,
        }
        for entry in entries()
    ]
    write_json(json_file, {"models": rows})
    if not quiet:
        _print_table(rows)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Configuration file.")], json_file: JsonFile = None, quiet: Quiet = False
) -> None:
    """Say whether `serve FILE` would start, without starting or fetching anything."""
    from deploy.config import load_config
    from deploy.door import door_settings
    from deploy.preflight import check_models

    try:
        config = load_config(file)
        door_settings(config, os.environ)
        found = check_models(config)
    except UserError as error:
        write_json(json_file, {"ok": False, "error": str(error)})
        raise
    write_json(json_file, {"ok": True, "models": [asdict(model) for model in found]})
    if quiet:
        return
    for model in found:
        print(f"{model.id}: {_describe(model)}")
    print(f"{file} is valid")


@app.command()
def key(name: Annotated[str, typer.Argument(help="Whose key it is.")], json_file: JsonFile = None) -> None:
    """Make an API key. Its line for the file of keys goes to standard output, the key itself to standard error."""
    from cluster.gateway.auth import new_key

    try:
        secret, known = new_key(name)
    except ValueError as error:
        raise UserError(str(error)) from None
    write_json(json_file, {"name": name, "key": secret, "line": known.line})
    print(known.line)
    print(f"{name}'s key, which is shown only now: {secret}", file=sys.stderr)


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help="Well-known shape, catalogue name, folder or .gguf file.")],
    gpus: Annotated[int, typer.Option(help="How many there are; a node has 8.", min=1)] = 8,
    gpu: Annotated[str, typer.Option(help="Which: h200 or h100.")] = "h200",
    dtype: Annotated[
        str, typer.Option(help="What weights and cache are held in.", show_default="the model's")
    ] = "auto",
    batch: Annotated[int, typer.Option(help="Requests that run at once on all GPUs together.", min=1)] = 256,
    context: Annotated[int | None, typer.Option(help="Tokens of each.", min=1, show_default="4096")] = None,
    prompt: Annotated[int | None, typer.Option(help="Tokens of a prompt.", min=1, show_default="2048")] = None,
    itl: Annotated[str | None, typer.Option(help="Longest wait for the next token, such as 20ms.")] = None,
    ttft: Annotated[str | None, typer.Option(help="Longest wait for the first token, such as 500ms.")] = None,
    tables: Annotated[
        Path | None, typer.Option(help="Folder of measured times.", show_default="those that come with Mobula")
    ] = None,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Which layouts of a model fit on the GPUs, what each would cost, and which to choose."""
    from deploy.plan.plan import Request, make_plan
    from deploy.plan.report import as_json, print_plan
    from deploy.plan.tables import OUR_TABLES

    asked = Request(model, gpus, gpu, dtype, batch, context, prompt, itl, ttft, tables or OUR_TABLES)
    made = make_plan(asked, quiet)
    write_json(json_file, as_json(made))
    if not quiet:
        print_plan(made)


@bench.command("gateway")
def bench_gateway(
    mode: Annotated[
        IngressMode | None, typer.Option(help="The one HTTP mode to measure.", show_default="all of them")
    ] = None,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """What HTTP, gateway, handle and bus add to an engine, in each HTTP mode."""
    from deploy.bench.gateway import MODES, run
    from deploy.catalog import DEFAULT_MODEL
    from deploy.preflight import fetch_model

    run(fetch_model(DEFAULT_MODEL, quiet), [mode] if mode else MODES, json_file, quiet)


@bench.command("communication")
def bench_communication(
    model: Annotated[str, typer.Argument(help="As for `mobula plan`.")] = "llama-3.3-70b",
    batch: Annotated[int, typer.Option(help="Requests in a decode step.", min=1)] = 64,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """What a step's ranks say to each other: counted on real ranks, computed for a model."""
    from deploy.bench.communication import as_json, lines, measure
    from deploy.plan.source import model_shape

    result = measure(model, model_shape(model, quiet), batch)
    write_json(json_file, as_json(result))
    if not quiet:
        print("\n".join(lines(result)))


@bench.command("sampling")
def bench_sampling(
    batch: Annotated[int, typer.Option(help="Requests in a decode step.", min=1)] = 32,
    rounds: Annotated[int, typer.Option(help="How often everything is measured.", min=1)] = 9,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """What penalties, biases, masks and log probabilities add to a decode step of the default model."""
    from deploy.bench.sampling import as_json, lines, measure
    from deploy.catalog import DEFAULT_MODEL
    from deploy.preflight import fetch_model
    from replicas.build import build_engine
    from replicas.config import EngineConfig

    engine = build_engine(str(fetch_model(DEFAULT_MODEL, quiet)), EngineConfig(max_running=batch))
    costs = measure(engine, batch, rounds)
    write_json(json_file, as_json(costs))
    if not quiet:
        print("\n".join(lines(costs)))


@bench.command("router")
def bench_router(
    replicas: Annotated[int, typer.Option(help="How many hold blocks.", min=16)] = 1000,
    blocks: Annotated[int, typer.Option(help="How many are held.", min=1280)] = 10_000_000,
    dynamo_python: Annotated[
        Path | None, typer.Option(help="Interpreter with ai-dynamo-runtime, to measure its RadixTree beside ours.")
    ] = None,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """What the router's prefix index costs: memory, events, the search for a prompt."""
    from deploy.bench.router import as_json, lines, run
    from deploy.bench.router_load import Load

    result = run(Load(replicas, blocks), dynamo_python)
    write_json(json_file, as_json(result))
    if not quiet:
        print("\n".join(lines(result)))


def _read_target(target: str | None, host: str | None, port: int | None) -> MobulaConfig:
    """The configuration that `serve` was asked for; options win over the file."""
    from deploy.catalog import DEFAULT_MODEL
    from deploy.config import config_for_model, load_config

    is_file = target is not None and target.endswith((".yaml", ".yml"))
    config = load_config(Path(target)) if target and is_file else config_for_model(target or DEFAULT_MODEL)
    changes = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    return config.model_copy(update={"gateway": config.gateway.model_copy(update=changes)})


def _describe(model: CheckedModel) -> str:
    if model.config is not None:
        return f"opens, {model.config.architecture}, {model.config.num_layers} layers"
    if model.vectors is not None:
        return f"opens, vectors of {model.vectors.size}, texts of {model.vectors.max_model_len} tokens at most"
    return f"{model.source} is not on this machine yet; serve will fetch it"


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "model", "size", "licence", "cached", box=None)
    for row in rows:
        cached = "yes" if row["cached"] else "no"
        table.add_row(row["name"], row["model"], f"{row['bytes'] / 1e6:.0f} MB", row["licence"], cached)
    Console().print(table)


if __name__ == "__main__":
    main()
