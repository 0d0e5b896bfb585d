"""How HTTP reaches a gateway.

- `gateway`: each gateway listens on a socket of its own. The shortest way, hence the default; the gateways of one
  machine share the port (SO_REUSEPORT), and a load balancer stands before several machines.
- `haproxy`: Ray Serve's HAProxy on every node, before the gateways' direct ingress ports.
- `direct`: Serve's direct ingress alone. Its port cannot be bound again for a minute after a gateway's restart.
- `proxy`: Serve's Python proxy. Correct, and by far the most expensive for streams.

`mobula bench gateway` measures them side by side. Ray Serve reads most of this from the environment when it is
imported, in every process: `environment` must be set before Ray starts, and Ray hands it on to what it starts.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, Literal

IngressMode = Literal["gateway", "haproxy", "direct", "proxy"]
BACKLOG = 2048
MAX_MESSAGE_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Ingress:
    """Where clients connect to, and by which way."""

    mode: IngressMode
    host: str
    port: int

    def environment(self) -> dict[str, str]:
        """Variables for the process that starts Ray."""
        common = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(MAX_MESSAGE_BYTES),
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": str(int(self.mode != "proxy")),
            "RAY_SERVE_ENABLE_HA_PROXY": str(int(self.mode == "haproxy")),
            "RAY_SERVE_ENABLE_DIRECT_INGRESS": str(int(self.mode in ("haproxy", "direct"))),
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
            "RAY_SERVE_PORT_QUARANTINE_S": "0",
            "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",  # its requests go on elsewhere
        }
        if self.mode != "direct":
            return common
        return common | {
            "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(self.port),
            "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(self.port + 1),
        }

    def serve_options(self) -> dict[str, Any]:
        """Arguments of `serve.start`. With `direct` Serve's proxy still runs, out of the way on a free port."""
        if self.mode == "gateway":
            return {"proxy_location": "Disabled"}
        host = "0.0.0.0" if self.mode == "haproxy" else self.host  # Serve's HAProxy accepts no other
        port = _free_port() if self.mode == "direct" else self.port
        return {"proxy_location": "HeadOnly", "http_options": {"host": host, "port": port}}

    def open_socket(self) -> socket.socket | None:
        """The gateway's own listening socket, if the mode has one."""
        if self.mode != "gateway":
            return None
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # asyncio turns Nagle's algorithm off only for sockets that say that they are TCP.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((self.host, self.port))
        listener.listen(BACKLOG)
        return listener


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
