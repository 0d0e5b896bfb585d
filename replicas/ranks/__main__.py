"""The process of one rank other than 0: `python -m replicas.ranks`, with its spec on standard input."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

from parallel.channel import ChannelClosedError
from replicas.ranks.follower import run_rank
from replicas.ranks.processes import decode_spec


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's owner's to hear
    with suppress(ChannelClosedError):  # rank 0 is gone, and nobody is left to serve
        run_rank(decode_spec(sys.stdin.buffer.read()))


if __name__ == "__main__":
    main()
