"""How messages look on the wire: msgpack through msgspec, typed and tagged, never pickle.

Three channels use it. The *control channel* joins a replica to its engine process: requests and questions go down,
answers come up, each behind a frame with the request's id (empty for what concerns the engine as a whole). The *bus*
joins engine processes to gateways: once a step, one message with all of a gateway's tokens. At their *desks* gateways
ask each other where to place a request.
"""

from __future__ import annotations

import msgspec

from cluster.router.placement import Choice, Wish
from replicas.config import EngineConfig
from replicas.messages import (
    FinishReason,
    GenerateRequest,
    LoadReport,
    PromptLogprobs,
    RequestSummary,
    TokenEvent,
    TokenLogprobs,
)


class TokenRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A `TokenEvent` on the wire: the hottest message of all, hence an array without field names."""

    request_id: str
    choice: int
    offset: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: PromptLogprobs = ()

    @classmethod
    def of(cls, event: TokenEvent) -> TokenRow:
        return cls(
            event.request_id,
            event.choice,
            event.offset,
            event.token_ids,
            event.finish_reason,
            event.logprobs,
            event.prompt_logprobs,
        )


# The bus, engine to gateway. `epoch` names one start of one engine; `sequence` counts the messages of a stream.


class Welcome(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Answers a Hello: from now on this gateway's tokens arrive."""

    epoch: str


class Tokens(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The tokens stream: all new tokens of one gateway's requests in one step."""

    epoch: str
    sequence: int
    rows: tuple[TokenRow, ...]


class State(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The state stream: how the engine is loaded, and what has changed since the last message of the stream. `stored`
    and `removed` are the keys of KV blocks that are now in its cache and that no longer are; `taken` are the requests
    of all gateways that it has received, which `load` counts."""

    epoch: str
    sequence: int
    load: LoadReport
    stored: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    taken: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """In the state stream, to a gateway that asked: the keys of all KV blocks in the engine's cache."""

    epoch: str
    sequence: int
    keys: tuple[bytes, ...]


class Began(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """These requests enter the batch with the step that is about to be computed. Should it be the engine's last, they
    are the ones to be suspected."""

    request_ids: tuple[str, ...]


class Heartbeat(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Repeats the last sequence numbers, so that a loss is noticed on an idle line too, and makes gateways known to
    each other: `desks` are the addresses of all that have one."""

    epoch: str
    tokens_sequence: int
    state_sequence: int
    desks: tuple[str, ...] = ()


FromEngine = Welcome | Tokens | State | Snapshot | Began | Heartbeat


# The bus, gateway to engine.


class Hello(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Opens a gateway's streams; sent again as a sign of life. `desk` is where other gateways may ask it."""

    desk: str = ""


class SnapshotWanted(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Asks for a Snapshot: by a newcomer, and after a gap in the state stream."""


class Abort(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """End these requests now, even those that have yet to arrive. Travels on both channels."""

    request_ids: tuple[str, ...]


FromGateway = Hello | SnapshotWanted | Abort


# Between gateways. They trust each other as much as they trust an engine.


class Ask(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Where should this request run? Answered by an `Advice` of the same number."""

    number: int
    model: str
    wish: Wish


class Settled(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first token of a request that was asked for has come, or it has ended, or it went elsewhere."""

    model: str
    request_id: str


class Advice(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """`choice` is booked by whoever gives it. It chose among `num_replicas`; none if it knows no such model."""

    number: int
    choice: Choice | None
    num_replicas: int


ToDesk = Ask | Settled


# The control channel, replica to engine and back.


class Submit(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A request whose tokens go to `gateway` over the bus and whose summary is answered here."""

    gateway: str
    request: GenerateRequest


class Ping(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Answered from the step loop: an answer means that the engine steps."""

    number: int


class Shutdown(msgspec.Struct, tag=True, array_like=True, frozen=True):
    pass


ToEngine = Submit | Abort | Ping | Shutdown


DEFAULT_BUILDER = "replicas.build:build_engine"


class EngineSpec(msgspec.Struct, frozen=True):
    """What to start: `builder` is "module:function", called as
    function(model_path, config, on_stage, **options) -> Engine. With `ranks_by_replica` it is also told to join other
    ranks at `host`, and to have them started by `launch`: the replica does that, since it knows of other machines.
    The process ends with its `parent`."""

    model_path: str
    config: EngineConfig
    parent: int
    control_address: str
    pulse_address: str
    bus_host: str
    builder: str = DEFAULT_BUILDER
    options: dict[str, float] = {}
    ranks_by_replica: bool = False


class RankReport(msgspec.Struct, frozen=True):
    """What the preflight learns of one rank of a divided model. Memory in bytes."""

    rank: int
    node: str
    address: str
    device: str
    backend: str
    torch_version: str
    free_memory: int


class EngineInfo(msgspec.Struct, frozen=True):
    """What a started engine says of itself. `stages` are start-up stages with their seconds; `ranks` comes from the
    replica, if it started any."""

    epoch: str
    bus_address: str
    model_path: str
    model_name: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    max_running: int
    dtype: str
    stages: tuple[tuple[str, float], ...]
    ranks: tuple[RankReport, ...] = ()


class Ready(msgspec.Struct, tag=True, array_like=True, frozen=True):
    info: EngineInfo


class StartFailed(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The engine could not start; `message` is for people."""

    message: str


class RanksWanted(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The engine waits for its other ranks: start one for each encoded `RankSpec`."""

    specs: tuple[bytes, ...]


class Finished(msgspec.Struct, tag=True, array_like=True, frozen=True):
    summary: RequestSummary


class Stranger(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The request was not taken: its gateway is not connected to this engine's bus. Connect, and ask again."""

    bus_address: str


class Refused(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The request can never be served; `message` says why."""

    message: str


class Pong(msgspec.Struct, tag=True, array_like=True, frozen=True):
    number: int
    load: LoadReport


FromEngineControl = RanksWanted | Ready | StartFailed | Pong
Answer = Finished | Refused | Stranger

encode = msgspec.msgpack.Encoder().encode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
decode_from_gateway = msgspec.msgpack.Decoder(FromGateway).decode
decode_to_desk = msgspec.msgpack.Decoder(ToDesk).decode
decode_advice = msgspec.msgpack.Decoder(Advice).decode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_control = msgspec.msgpack.Decoder(FromEngineControl).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
