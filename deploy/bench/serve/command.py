"""`mobula bench serve` as typer reads it: every option, and the way from them to results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

_ARRIVALS, _LENGTHS, _OBJECTIVES, _SERVER, _RESULT = "Arrivals", "Lengths", "Objectives", "Server", "Result"

Url = Annotated[str, typer.Argument(metavar="URL", help="Address of the server, such as http://127.0.0.1:8000.")]

Rate = Annotated[
    float | None,
    Option(help="Requests a second, whether or not earlier ones are answered.", min=1e-6, rich_help_panel=_ARRIVALS),
]
Burstiness = Annotated[
    float,
    Option(
        help="Shape of the gamma distribution of gaps: 1 is Poisson, less is burstier.",
        min=1e-3,
        rich_help_panel=_ARRIVALS,
    ),
]
Concurrency = Annotated[
    int | None,
    Option(
        help="Requests under way at once; each end starts the next.",
        min=1,
        show_default="1, unless there is a rate or trace",
        rich_help_panel=_ARRIVALS,
    ),
]
Trace = Annotated[
    Path | None,
    Option(metavar="FILE", help="Replay a trace: Mooncake .jsonl or Azure .csv.", rich_help_panel=_ARRIVALS),
]
Speed = Annotated[float, Option(help="Replay so many times as fast.", min=1e-6, rich_help_panel=_ARRIVALS)]
Limit = Annotated[int | None, Option(help="Replay so many requests.", min=1, rich_help_panel=_ARRIVALS)]
Requests = Annotated[
    int | None, Option(help="How many are sent.", min=1, show_default="100", rich_help_panel=_ARRIVALS)
]
Duration = Annotated[
    str | None,
    Option(help="Send as many as arrive in this time, such as 60s, but at least 20.", rich_help_panel=_ARRIVALS),
]
Warmup = Annotated[int, Option(help="Requests before the measurement.", min=0, rich_help_panel=_ARRIVALS)]
Seed = Annotated[int, Option(help="Decides times and lengths.", min=0, rich_help_panel=_ARRIVALS)]
TextSeed = Annotated[
    int | None,
    Option(
        help="Decides the words. The same ones again may be in the server's prefix cache.",
        min=0,
        show_default="new ones each time",
        rich_help_panel=_ARRIVALS,
    ),
]

Prompt = Annotated[str, Option("--input", help="Tokens of a prompt: 200, or 32-512.", rich_help_panel=_LENGTHS)]
Output = Annotated[str, Option(help="Tokens of an answer: 64, or 16-128.", rich_help_panel=_LENGTHS)]
LengthFile = Annotated[
    Path | None, Option(metavar="FILE", help="Draw lengths from a trace or table.", rich_help_panel=_LENGTHS)
]
LengthScale = Annotated[float, Option(help="Factor for a file's lengths.", min=1e-6, rich_help_panel=_LENGTHS)]
Prefix = Annotated[int, Option(help="Tokens before each prompt that others share.", min=0, rich_help_panel=_LENGTHS)]
Prefixes = Annotated[int, Option(help="Different shared prefixes.", min=1, rich_help_panel=_LENGTHS)]
Turns = Annotated[int, Option(help="Requests of a conversation.", min=1, rich_help_panel=_LENGTHS)]
Pause = Annotated[str, Option(help="Between an answer and the next turn.", rich_help_panel=_LENGTHS)]

Ttft = Annotated[str | None, Option(help="Longest time to first token: 500ms.", rich_help_panel=_OBJECTIVES)]
Itl = Annotated[
    str | None, Option(help="Longest gap, for 99 % of a request's gaps: 50ms.", rich_help_panel=_OBJECTIVES)
]
Tpot = Annotated[str | None, Option(help="Longest time per output token: 40ms.", rich_help_panel=_OBJECTIVES)]
E2e = Annotated[str | None, Option(help="Longest time for all: 10s.", rich_help_panel=_OBJECTIVES)]
Sweep = Annotated[
    bool, Option("--sweep", help="Find the highest rate within the objectives.", rich_help_panel=_OBJECTIVES)
]
Attainment = Annotated[
    float, Option(help="Share of requests that a rate must serve so.", min=0.01, max=1, rich_help_panel=_OBJECTIVES)
]

Model = Annotated[
    str | None, Option(help="Model to ask.", show_default="the first one served", rich_help_panel=_SERVER)
]
Chat = Annotated[bool, Option("--chat", help="Ask /v1/chat/completions, not /v1/completions.", rich_help_panel=_SERVER)]
ApiKeyEnv = Annotated[str, Option(help="Variable that holds the API key.", rich_help_panel=_SERVER)]
Timeout = Annotated[str, Option(help="A request that takes longer has failed.", rich_help_panel=_SERVER)]
Compare = Annotated[
    str | None, Option(metavar="URL", help="Measure this server in turns with the first.", rich_help_panel=_SERVER)
]
Rounds = Annotated[int, Option(help="Pairs of rounds of a comparison.", min=4, rich_help_panel=_SERVER)]

JsonFile = Annotated[
    Path | None, Option("--json", metavar="FILE", help="Write the result as JSON, too.", rich_help_panel=_RESULT)
]
Plots = Annotated[Path | None, Option(metavar="FOLDER", help="Draw PNG files there.", rich_help_panel=_RESULT)]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print errors only.", rich_help_panel=_RESULT)]


def bench_serve(
    context: typer.Context,
    url: Url,
    rate: Rate = None,
    burstiness: Burstiness = 1.0,
    concurrency: Concurrency = None,
    trace: Trace = None,
    speed: Speed = 1.0,
    limit: Limit = None,
    requests: Requests = None,
    duration: Duration = None,
    warmup: Warmup = 4,
    seed: Seed = 0,
    text_seed: TextSeed = None,
    prompt: Prompt = "200",
    output: Output = "64",
    lengths: LengthFile = None,
    length_scale: LengthScale = 1.0,
    prefix: Prefix = 0,
    prefixes: Prefixes = 1,
    turns: Turns = 1,
    pause: Pause = "0s",
    ttft: Ttft = None,
    itl: Itl = None,
    tpot: Tpot = None,
    e2e: E2e = None,
    sweep: Sweep = False,
    attainment: Attainment = 0.99,
    model: Model = None,
    chat: Chat = False,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
    timeout: Timeout = "10min",
    compare: Compare = None,
    rounds: Rounds = 6,
    json_file: JsonFile = None,
    plots: Plots = None,
    quiet: Quiet = False,
) -> None:
    """Load any OpenAI-compatible server; measure latency, throughput and goodput."""
    from deploy.bench.serve.options import Arrivals, Server, Sizes, load_of, settings_of, slo_of
    from deploy.bench.serve.runs import Results, run_comparison, run_load, run_sweep

    results = Results(context.params, json_file, plots, quiet)
    arrivals = Arrivals(rate, burstiness, concurrency, trace, speed, limit, requests, duration, seed, sweep)
    sizes = Sizes(prompt, output, lengths, length_scale, prefix, prefixes, turns, pause)
    server = Server(url, compare, model, chat, api_key_env, timeout)
    settings = settings_of(server, arrivals, load_of(arrivals, sizes), slo_of(ttft, itl, tpot, e2e), warmup, text_seed)
    if sweep:
        run_sweep(settings, attainment, results)
    elif compare is not None:
        run_comparison(settings, rounds, results)
    else:
        run_load(settings, results)
