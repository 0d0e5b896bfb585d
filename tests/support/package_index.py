"""A package index on this machine, for tests of what comes from one: a folder for pip's --find-links, or over HTTP
with a server that stops in the middle of a download for as long as a test wants."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DISTRIBUTION = "mobula-trial-model"
WHEEL_NAME = "mobula_trial_model-1.0-py3-none-any.whl"


def write_wheel(folder: Path, member: str, payload: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    """A wheel of DISTRIBUTION, as small as pip accepts it, that holds `payload` as `member`."""
    info = "mobula_trial_model-1.0.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL_NAME, "w", compression) as wheel:
        wheel.writestr(member, payload)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder / WHEEL_NAME


@dataclass
class PackageIndex:
    """`stalled` is set while a download waits in its middle; it goes on once `go_on` is set."""

    wheel: bytes
    url: str = ""
    downloads: int = 0
    stalled: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve_index(wheel: Path) -> Iterator[PackageIndex]:
    index = PackageIndex(wheel.read_bytes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(index))
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield index
    finally:
        index.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _handler_for(index: PackageIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(".whl"):
                self._send_wheel()
            else:
                self._start("text/html", body := f'<a href="/{WHEEL_NAME}">{WHEEL_NAME}</a>'.encode())
                self.wfile.write(body)

        def _send_wheel(self) -> None:
            index.downloads += 1
            middle = len(index.wheel) // 2
            self._start("application/octet-stream", index.wheel)
            self.wfile.write(index.wheel[:middle])
            index.stalled.set()
            index.go_on.wait()
            self.wfile.write(index.wheel[middle:])

        def _start(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Handler
