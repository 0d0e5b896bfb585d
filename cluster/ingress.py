"""How HTTP reaches a gateway: through Serve's proxy, through HAProxy, or straight into the gateway's own port.

Ray Serve reads these choices from the environment when it is imported, in every process: `environment` must be set
before Ray starts, and Ray hands it on to what it starts.
"""

from __future__ import annotations

import socket
from typing import Literal

IngressMode = Literal["direct", "haproxy", "proxy"]


def environment(mode: IngressMode, port: int) -> dict[str, str]:
    """Variables for the process that starts Ray. With `direct` the first gateway of a node listens on `port`, further
    ones on the ports after it."""
    common = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        "RAY_SERVE_PORT_QUARANTINE_S": "0",
    }
    if mode == "proxy":
        return common
    if mode == "haproxy":
        return common | {"RAY_SERVE_ENABLE_HA_PROXY": "1"}
    return common | {
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(port),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(port + 99),
    }


def proxy_port(mode: IngressMode, port: int) -> int:
    """The port of Serve's own proxy: with `direct` it still runs, out of the way on a free one."""
    if mode != "direct":
        return port
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free: int = probe.getsockname()[1]
        return free
