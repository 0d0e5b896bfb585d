"""`mobula simulate` as typer reads it: every option, and the way from them to results."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Annotated, Literal

from typer import Option

from deploy.errors import UserError

_LOAD, _CLUSTER, _RESULT = "Load", "Cluster", "Result"

Trace = Annotated[Path | None, Option(metavar="FILE", help="Replay a Mooncake trace.", rich_help_panel=_LOAD)]
Synthetic = Annotated[str | None, Option("--load", help="A made-up load: chats or siblings.", rich_help_panel=_LOAD)]
Rate = Annotated[float, Option(help="Requests a second of a made-up load.", min=1e-3, rich_help_panel=_LOAD)]
Seconds = Annotated[float, Option(help="Length of a made-up load.", min=1e-3, rich_help_panel=_LOAD)]
Scale = Annotated[
    float, Option("--rate-scale", help="Let it all come so many times as fast.", min=1e-3, rich_help_panel=_LOAD)
]
Limit = Annotated[int | None, Option(help="Only the first so many requests.", min=1, rich_help_panel=_LOAD)]

Replicas = Annotated[int, Option(help="How many there are.", min=1, rich_help_panel=_CLUSTER)]
Blocks = Annotated[int, Option(help="KV blocks of each.", min=1, rich_help_panel=_CLUSTER)]
BlockSize = Annotated[int, Option(help="Tokens of a KV block.", min=1, rich_help_panel=_CLUSTER)]
Scheduling = Annotated[
    Literal["shortest", "fcfs"],
    Option(help="Whose prompts they compute first: shortest or fcfs.", rich_help_panel=_CLUSTER),
]
Gateways = Annotated[int, Option(help="Each places the requests that it gets.", min=1, rich_help_panel=_CLUSTER)]
Lag = Annotated[
    float, Option("--lag-ms", help="From a replica's event to a gateway's ear.", min=0, rich_help_panel=_CLUSTER)
]
Policies = Annotated[
    str | None, Option(metavar="A,B", help="Ways to place.", show_default="all", rich_help_panel=_CLUSTER)
]
Seed = Annotated[int, Option(help="Decides all that is random.", min=0, rich_help_panel=_CLUSTER)]
Sweep = Annotated[
    bool,
    Option("--sweep", help="Find the rate that each policy serves 99 % in time of, too.", rich_help_panel=_RESULT),
]
JsonFile = Annotated[
    Path | None, Option("--json", metavar="FILE", help="Write the result as JSON, too.", rich_help_panel=_RESULT)
]
Plot = Annotated[Path | None, Option(metavar="FILE", help="Draw a PNG.", rich_help_panel=_RESULT)]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print errors only.", rich_help_panel=_RESULT)]


def simulate(
    trace: Trace = None,
    load: Synthetic = None,
    rate: Rate = 4.0,
    seconds: Seconds = 600.0,
    rate_scale: Scale = 1.0,
    limit: Limit = None,
    replicas: Replicas = 8,
    blocks: Blocks = 16384,
    block_size: BlockSize = 64,
    scheduling: Scheduling = "shortest",
    gateways: Gateways = 1,
    lag_ms: Lag = 1.0,
    policies: Policies = None,
    seed: Seed = 0,
    sweep: Sweep = False,
    json_file: JsonFile = None,
    plot: Plot = None,
    quiet: Quiet = False,
) -> None:
    """Compare ways to place requests on replicas, in virtual time and without a GPU."""
    from deploy.json_file import check_folder, write_json
    from deploy.simulate.cluster import Shape
    from deploy.simulate.comparison import POLICIES, Comparison, as_json
    from deploy.simulate.load import at_rate, read_trace
    from deploy.simulate.report import draw, print_table
    from deploy.simulate.synthetic import Amount, made_up
    from replicas.config import EngineConfig

    if (trace is None) == (load is None):
        raise UserError("give either --trace FILE or --load NAME")
    check_folder(plot.parent if plot else None)
    arrivals = (
        read_trace(trace, block_size) if trace else made_up(load or "", Amount(rate, seconds, block_size), Random(seed))
    )
    engine = EngineConfig(block_size=block_size, max_batched_tokens=8192, max_running=256, policy=scheduling)
    shape = Shape(replicas, blocks, engine, gateways, lag_ms / 1e3)
    names = tuple(policies.split(",")) if policies else tuple(POLICIES)
    comparison = Comparison(shape, names, at_rate(arrivals[:limit], rate_scale), seed)
    result = comparison.run(sweep)
    write_json(json_file, as_json(comparison, result))
    if plot is not None:
        draw(result, plot)
    if not quiet:
        print_table(result)
